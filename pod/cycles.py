"""Estimates cycles by part, and communication, from the text of a program compiled for TPU.

The compiler annotates every fusion with `estimated_cycles`, which depend on precision and layout.
This module sums them over the program, with the bodies of loops multiplied by their trip counts.

The sum leaves out waiting for collectives, host and input, and anything that the hardware does
concurrently. The bytes of the collectives are listed with an estimate of their time on the links:
gathered bytes over the bandwidth of a chip, and twice that for a sum.
"""

import collections
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pod.topologies import Generation

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
NOT_AN_ESTIMATE = 2**50  # the compiler writes 2^60 for an unknown number
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}
PASSES = {"all-reduce": 2}  # how often the bytes cross a chip's links; once for all others
SCOPES = ("blocks", "statistics", "roots", "preconditioning", "gather")  # of optim.shampoo

Computation = list[str]


@functools.cache
def _pattern(text: str) -> re.Pattern:
    return re.compile(text)


def _find(pattern: str, line: str) -> str | None:
    match = _pattern(pattern).search(line)
    return match[1] if match else None


def parse_computations(text: str) -> tuple[dict[str, Computation], str]:
    """Returns {name: instructions, one per line} and the name of the entry computation."""
    computations: dict[str, Computation] = {}
    entry, name = "", ""
    for line in text.splitlines():
        header = _pattern(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$").match(line)
        if header:
            name = header[2]
            computations[name] = []
            entry = name if header[1] else entry
        elif line.startswith("}"):
            name = ""
        elif name and " = " in line:
            computations[name].append(line.strip())
    return computations, entry


def part_of(op_name: str) -> str:
    """Returns the part of a training step that an instruction belongs to, from its scopes."""
    scopes = op_name.split("/")
    if "optimizer" in scopes:
        inner = scopes[scopes.index("optimizer") :]
        return next((scope for scope in SCOPES if scope in inner), "optimizer")
    if any("transpose(" in scope for scope in scopes):
        return "backward"
    if any("jvp(" in scope for scope in scopes):
        return "forward"
    return "all_reduce" if "all_reduce" in scopes else "other"


def trip_count(loop: str, computations: Mapping[str, Computation]) -> int | None:
    """Returns how often a `while` instruction runs its body; None if the text does not show it.

    This is the compiler's own count, if any. Otherwise it is the bound of a condition
    `i < constant` that counts from 0, as in every fori_loop, scan and map of JAX.
    """
    count = _find(r'known_trip_count"?:\{"n":"(\d+)"', loop)
    if count:
        return int(count)
    condition = computations[_find(r"condition=%?([\w.\-]+)", loop) or ""]
    root = next((line for line in condition if line.startswith("ROOT")), "")
    bound = _find(r"compare\(%?[\w.\-]+, %?([\w.\-]+)\), direction=LT", root)
    constants = [line for line in condition if bound and line.startswith(f"%{bound} ")]
    value = _find(r"constant\((\d+)\)", constants[0]) if constants else None
    return int(value) if value else None


class _Totals:
    """Sums of cycles and bytes over the instructions that an entry computation reaches.

    Attributes:
      cycles: by part.
      moved: {kind of collective: {"count", "bytes"}}.
      link_bytes: bytes times passes, by part.
      n_unknown_loops: loops without a trip count; their bodies are counted once.
    """

    def __init__(self, computations: Mapping[str, Computation]):
        self.computations = computations
        self.cycles: collections.Counter[str] = collections.Counter()
        self.moved: dict[str, collections.Counter[str]] = {}
        self.link_bytes: collections.Counter[str] = collections.Counter()
        self.n_unknown_loops = 0

    def add(self, name: str, times: int = 1, outer: str = "") -> None:
        """Adds a computation that runs `times`; instructions without a name belong to `outer`."""
        for line in self.computations[name]:
            op_name = _find(r'op_name="([^"]*)"', line) or outer
            if " while(" in line:
                count = trip_count(line, self.computations)
                self.n_unknown_loops += count is None
                for key in ("body", "condition"):
                    self.add(_callee(line, key), times * (count or 1), op_name)
            elif " conditional(" in line:
                self._add_slowest(_branches(line), times, op_name)
            elif " call(" in line:
                self.add(_callee(line, "to_apply"), times, op_name)
            else:
                cycles = int(_find(r'"estimated_cycles":"(\d+)"', line) or 0)
                if 0 < cycles < NOT_AN_ESTIMATE:
                    self.cycles[part_of(op_name)] += cycles * times
                self._add_collective(line, times, op_name)

    def _add_slowest(self, branches: Sequence[str], times: int, op_name: str) -> None:
        totals = [_Totals(self.computations) for _ in branches]
        for branch_totals, branch in zip(totals, branches, strict=True):
            branch_totals.add(branch, times, op_name)
        slowest = max(totals, key=lambda branch_totals: branch_totals.cycles.total())
        self.cycles.update(slowest.cycles)
        self.link_bytes.update(slowest.link_bytes)
        self.n_unknown_loops += slowest.n_unknown_loops
        for kind, moved in slowest.moved.items():
            self.moved.setdefault(kind, collections.Counter()).update(moved)

    def _add_collective(self, line: str, times: int, op_name: str) -> None:
        match = _pattern(rf" = (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(").search(line)
        if not match:
            return
        result, kind, is_asynchronous = match.groups()
        shapes = _pattern(r"(\w+)\[([\d,]*)\]").findall(result)
        sizes = [_n_bytes(dtype, dims) for dtype, dims in shapes if dtype in BYTES]
        if is_asynchronous and kind != "all-reduce":  # (operands, results)
            sizes = sizes[len(sizes) // 2 :]
        moved = self.moved.setdefault(kind, collections.Counter())
        moved.update(count=times, bytes=sum(sizes) * times)
        self.link_bytes[part_of(op_name)] += PASSES.get(kind, 1) * sum(sizes) * times


def _callee(line: str, key: str) -> str:
    return _find(rf"{key}=%?([\w.\-]+)", line) or ""


def _branches(line: str) -> list[str]:
    names = _find(r"branch_computations=\{([^}]*)\}", line)
    if names:
        return [name.strip().lstrip("%") for name in names.split(",")]
    return [_callee(line, "true_computation"), _callee(line, "false_computation")]


def _n_bytes(dtype: str, dims: str) -> int:
    size = BYTES[dtype]
    for dim in dims.split(","):
        size *= int(dim) if dim else 1
    return size


def estimate(text: str, generation: Generation) -> dict[str, Any]:
    """Returns cycles, seconds by part, and collectives with their time, from a program's text.

    A conditional counts as its slowest branch.
    """
    computations, entry = parse_computations(text)
    totals = _Totals(computations)
    totals.add(entry)
    hertz, bandwidth = generation.clock_mhz * 1e6, generation.interconnect_bytes_per_second
    return {
        "estimated_cycles": totals.cycles.total(),
        "compute_seconds": totals.cycles.total() / hertz,
        "compute_seconds_by_part": {k: v / hertz for k, v in totals.cycles.most_common()},
        "collectives": {kind: dict(moved) for kind, moved in sorted(totals.moved.items())},
        "link_seconds": totals.link_bytes.total() / bandwidth,
        "link_seconds_by_part": {k: v / bandwidth for k, v in totals.link_bytes.most_common()},
        "loops_counted_once": totals.n_unknown_loops,
    }
