"""Float64 transcriptions of the published formulas, per block, sharing no code with `optim`."""

import itertools

import numpy as np


def merged(shape, limit):
    out, product = [], 1
    for d in shape:
        if product * d <= limit:
            product *= d
        else:
            out += [product] if product > 1 else []
            product = d
    return tuple(out + [product]) if product > 1 or not out else tuple(out)


def block_slices(shape, size):
    cuts = [[slice(s, min(s + size, d)) for s in range(0, d, size)] for d in shape]
    return list(itertools.product(*cuts))


def inverse_root(s, p, epsilon, relative):
    values, vectors = np.linalg.eigh(s)
    top = max(values[-1], 0.0)
    ridge = epsilon * top if relative else epsilon
    return (vectors * (np.maximum(values, 0) + ridge) ** (-1 / p)) @ vectors.T


class Shampoo:
    """One tensor, grafted to SGD, Nesterov; facts as published (README, MLPerf v1.0).

    `every` is (statistics_compute_steps, preconditioning_compute_steps).
    """

    def __init__(
        self,
        w,
        *,
        rate,
        beta1,
        beta2,
        epsilon,
        relative,
        p,
        decay,
        start,
        block,
        merge=True,
        every=(1, 1),
    ):
        self.w = np.array(w, np.float64)
        self.rate, self.beta1, self.beta2 = rate, beta1, beta2
        self.epsilon, self.relative, self.decay, self.start = epsilon, relative, decay, start
        self.every = every
        self.shape = merged(self.w.shape, block) if self.w.ndim and merge else self.w.shape
        self.p = p or 2 * len(self.shape)
        self.blocks = block_slices(self.shape, block)
        sizes = [[s.stop - s.start for s in b] for b in self.blocks]
        self.statistics = [[epsilon * np.eye(d) for d in ds] for ds in sizes]
        self.roots = [[np.eye(d) for d in ds] for ds in sizes]
        self.m, self.m_graft, self.step = np.zeros_like(self.w), np.zeros_like(self.w), 0

    def update(self, g):
        g = np.asarray(g, np.float64)
        direction = g if g.ndim == 0 else self._direction(g.reshape(self.shape)).reshape(g.shape)
        length = np.linalg.norm(direction)
        scaled = direction * np.linalg.norm(g) / length if length > 0 else g
        u, u_graft = scaled + self.decay * self.w, g + self.decay * self.w
        self.m = self.beta1 * self.m + u
        self.m_graft = self.beta1 * self.m_graft + u_graft
        if self.step >= self.start:
            move = u + self.beta1 * self.m
        else:
            move = u_graft + self.beta1 * self.m_graft
        self.w = self.w - self.rate(self.step) * move
        self.step += 1

    def _direction(self, g):
        out = np.zeros_like(g)
        weight = 1.0 if self.beta2 == 1 else 1 - self.beta2
        for block, statistics, roots in zip(self.blocks, self.statistics, self.roots, strict=True):
            part = g[block]
            for axis in range(g.ndim):
                unfolded = np.moveaxis(g[block], axis, 0).reshape(part.shape[axis], -1)
                if self.step % self.every[0] == 0:
                    statistics[axis] *= self.beta2
                    statistics[axis] += weight * unfolded @ unfolded.T
                if self.step % self.every[1] == 0:
                    roots[axis] = inverse_root(
                        statistics[axis], self.p, self.epsilon, self.relative
                    )
                part = np.moveaxis(np.tensordot(roots[axis], part, (1, axis)), 0, axis)
            out[block] = part
        return out


def lars_weight(w, m, g, rate, momentum, decay, coefficient):
    """flax v0.3.3 LARS on one weight tensor."""
    w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
    trust = coefficient * w_norm / (g_norm + decay * w_norm) if w_norm and g_norm else 1.0
    m = momentum * m + rate * trust * (g + decay * w)
    return w - m, m


class SM3:
    """SM3-II on one tensor (sm3.py), element by element."""

    def __init__(self, w, rate, momentum):
        self.w, self.rate, self.momentum = np.array(w, np.float64), rate, momentum
        shape = self.w.shape
        self.accumulators = [np.zeros(d) for d in shape] if len(shape) > 1 else [np.zeros(shape)]
        self.m = np.zeros(shape)

    def update(self, g):
        g = np.asarray(g, np.float64)
        total = np.zeros(g.shape)
        for index in np.ndindex(*g.shape):
            if g.ndim > 1:
                past = min(a[i] for a, i in zip(self.accumulators, index, strict=True))
            else:
                past = self.accumulators[0][index]
            total[index] = past + g[index] ** 2
        if g.ndim > 1:
            for axis in range(g.ndim):
                self.accumulators[axis] = (
                    np.moveaxis(total, axis, 0).reshape(g.shape[axis], -1).max(1)
                )
        else:
            self.accumulators[0] = total
        step = (1 - self.momentum) * g / np.sqrt(total + 1e-30)
        self.m = self.momentum * self.m + step
        self.w = self.w - self.rate * self.m
