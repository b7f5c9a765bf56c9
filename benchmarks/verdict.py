"""How often is the report's verdict wrong, and how often does it see a true difference?

    python -m benchmarks.verdict --out results/verdict_power/README.md

Runs with a known difference in steps are simulated and judged by the report's own functions.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reporting import compare, inference, ladder, verdict

REDUCTIONS = (0.0, 0.05, 0.12, 0.31)  # a needs this fraction fewer steps than b
SEEDS = (5, 10, 50)
CENSORED = (0.0, 0.2, 0.4, 0.6)  # share of b's runs that the budget ends before the target
LOG_SD = 0.04  # of steps to target over seeds
STEPS = 2400.0  # b's median
FINE, MLPERF = 40, 157  # steps between evaluations: about one and four epochs at batch 32,768
LADDER = np.array([34.0, 40, 48, 58, 70, 84])
SLOPE, TARGET = 0.1, 0.75  # accuracy gained per log step near the target


def judge(scores: np.ndarray, n: int, lo: np.ndarray, hi: np.ndarray) -> str:
    """Returns the report's verdict by measure A (a single test: nothing to correct for)."""
    test = inference.test_scores(scores, n, n >= inference.MIN_PAIRS)
    reached = np.isfinite(hi)
    times = np.where(reached, hi, lo).reshape(2, n)
    medians = inference.km_median(times, reached.reshape(2, n))
    ratio = float(medians[0] / medians[1]) if np.isfinite(medians).all() else None
    sizes = {"ratio": ratio} | compare.bound(list(medians), list(times.max(-1)))
    told = {"n": [n, n], "measure": "A", "n_tests": 1, "p_adjusted": test["p_value"]}
    return verdict.verdict(test | told | sizes)


def waiting(
    rng: np.random.Generator, n: int, reduction: float, censored: float, cadence: float, rho: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (lo, hi) of n runs of a, then n of b; seeds i of both have correlation rho.

    A run is evaluated at every `cadence` steps and at its budget, which `censored` of b's runs
    would have to exceed.
    """
    common, own = rng.standard_normal(n), rng.standard_normal((2, n))
    noise = math.sqrt(rho) * common + math.sqrt(1 - rho) * own
    steps = STEPS * np.array([[1 - reduction], [1.0]]) * np.exp(LOG_SD * noise)
    budget = math.inf
    if censored:
        budget = STEPS * math.exp(LOG_SD * float(inference.stats.norm.ppf(1 - censored)))
    after = cadence * np.ceil(steps / cadence)
    lo = np.minimum(np.where(steps > budget, budget, after - cadence), budget)
    hi = np.where(steps > budget, np.inf, np.minimum(after, budget))
    return lo.ravel(), hi.ravel()


def share_shown(
    n_simulations: int,
    n: int,
    reduction: float,
    censored: float,
    *,
    cadence: float = FINE,
    rho: float = 0.0,
) -> tuple[float, float]:
    """Returns the shares of simulations with the verdict "fewer steps", "more steps"."""
    rng = np.random.default_rng([n, round(1000 * reduction), round(1000 * censored)])
    counts = {"fewer steps": 0, "more steps": 0}
    for _ in range(n_simulations):
        lo, hi = waiting(rng, n, reduction, censored, cadence, rho)
        said = judge(inference.waiting_scores(lo, hi), n, lo, hi)
        counts[said] = counts.get(said, 0) + 1
    return counts["fewer steps"] / n_simulations, counts["more steps"] / n_simulations


def ladder_share_shown(n_simulations: int, n: int, reduction: float) -> tuple[float, float]:
    """Returns the same shares for budget ladders; the accuracy's noise is LOG_SD steps' worth."""
    rng = np.random.default_rng([n, round(1000 * reduction)])
    true_steps = 52.0 * np.array([1 - reduction, 1.0])
    means = TARGET + SLOPE * np.log(LADDER[None] / true_steps[:, None])
    paired, shown = n >= inference.MIN_PAIRS, [0, 0]
    for _ in range(n_simulations):
        noise = SLOPE * LOG_SD * rng.standard_normal((2, n, len(LADDER)))
        x, y = means[:, None] + noise
        test = ladder.test_tables(LADDER, TARGET, x, y, paired)
        test |= {"n": [n, n], "n_tests": 1, "measure": "ladder", "p_adjusted": test["p_value"]}
        said = verdict.verdict(test)
        shown[0] += said == "fewer steps"
        shown[1] += said == "more steps"
    return shown[0] / n_simulations, shown[1] / n_simulations


def limit(n_simulations: int) -> float:
    """Returns 5 % plus two standard errors of a share of 5 %."""
    return 0.05 + 2 * math.sqrt(0.05 * 0.95 / n_simulations)


def tables(n_simulations: int) -> Iterator[str]:
    """Yields the report's lines, cell by cell."""
    head = ["n seeds", *(f"{100 * r:.0f} % fewer" for r in REDUCTIONS)]
    for title, settings in (
        (f"Evaluated every {FINE} steps", {"cadence": FINE}),
        (f"Evaluated every {MLPERF} steps (MLPerf's cadence)", {"cadence": MLPERF}),
        ("Seeds correlated 0.5 between the recipes", {"cadence": FINE, "rho": 0.5}),
    ):
        yield f"\n## Measure A. {title}\n\n| censored | {' | '.join(head)} |"
        yield "|---" * (len(head) + 1) + "|"
        for censored in CENSORED:
            for n in SEEDS:
                cells = [share_shown(n_simulations, n, r, censored, **settings) for r in REDUCTIONS]
                yield f"| {100 * censored:.0f} % | {n} | {_cells(cells)} |"
    yield f"\n## Budget ladder {', '.join(f'{b:.0f}' for b in LADDER)}\n\n| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for n in SEEDS:
        cells = [ladder_share_shown(n_simulations, n, r) for r in REDUCTIONS]
        yield f"| {n} | {_cells(cells)} |"


def _cells(cells: Sequence[tuple[float, float]]) -> str:
    """Formats the cells: without a difference both verdicts are wrong, with one only "more" is."""
    texts = [f"{100 * sum(cells[0]):.1f} % wrong"]
    texts += [f"{100 * fewer:.1f} %" + (f" ({100 * more:.1f} % wrong)" if more else "")
              for fewer, more in cells[1:]]  # fmt: skip
    return " | ".join(texts)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=2000, help="in each cell")
    parser.add_argument("--out", type=Path, default=None)
    options: Any = parser.parse_args(argv)
    text = INTRODUCTION.format(n=options.simulations, limit=100 * limit(options.simulations))
    for lines in tables(options.simulations):
        text += lines + "\n"
        print(lines, flush=True)
    if options.out is not None:
        options.out.write_text(text, "utf-8")


INTRODUCTION = f"""# Can the verdict be trusted?

Generated by `python -m benchmarks.verdict --out results/verdict_power/README.md`. Each cell holds
{{n}} simulated comparisons, judged by the functions of the report.
Recipe b reaches the target at {STEPS:.0f} steps (median), a at the stated fraction fewer; log
steps are normal with standard deviation {LOG_SD} over seeds. "Censored" is the share of b's runs
that have not reached the target at the end of the budget, where every run is evaluated, too.
Cells without a difference give the share of wrong verdicts, which must not exceed {{limit:.2f}} %
(5 % plus two standard errors); the others give the power: how often the report says "fewer
steps". Up to 9 seeds recipes are compared unpaired, from 10 on paired by seed. The spread is a
choice, not a measurement: with another spread the power is another one.
"""


if __name__ == "__main__":
    main()
