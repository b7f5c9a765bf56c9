"""Parameter shapes of ResNet-50 v1.5 as flax names them; 25,557,032 parameters in 161 leaves."""

from collections.abc import Iterable

import numpy as np

STAGES = (3, 4, 6, 3)
Tree = dict[str, dict[str, tuple[int, ...]]]


def _convolution(tree: Tree, name: str, kernel: tuple[int, int, int, int]) -> None:
    tree[f"{name}_conv"] = {"kernel": kernel}
    tree[f"{name}_bn"] = {"scale": kernel[-1:], "bias": kernel[-1:]}


def bottleneck(block: int) -> Tree:
    """Shapes of bottleneck block 0 ... 15."""
    stage = int(np.searchsorted(np.cumsum(STAGES), block, side="right"))
    width, first = 64 * 2**stage, block == sum(STAGES[:stage])
    entering = width * 4 if not first else (64 if stage == 0 else width * 2)
    tree: Tree = {}
    _convolution(tree, "reduce", (1, 1, entering, width))
    _convolution(tree, "spatial", (3, 3, width, width))
    _convolution(tree, "expand", (1, 1, width, 4 * width))
    if first:
        _convolution(tree, "project", (1, 1, entering, 4 * width))
    return tree


def bottlenecks(blocks: Iterable[int]) -> dict[str, Tree]:
    """Shapes of some bottleneck blocks; 8 to 10 are an eighth of the network."""
    return {f"block_{b:02d}": bottleneck(b) for b in blocks}


def resnet50() -> dict[str, Tree]:
    """Shapes of the whole network."""
    stem: Tree = {}
    _convolution(stem, "stem", (7, 7, 3, 64))
    dense = {"dense": {"kernel": (2048, 1000), "bias": (1000,)}}
    return {"stem": stem, "head": dense} | bottlenecks(range(sum(STAGES)))
