"""Reads a program compiled for TPU: estimated cycles by part, and what its collectives move.

The compiler annotates every fusion with `estimated_cycles`, aware of precision and layout. They are
summed over the program, bodies of loops times their trips. Left out: waiting for collectives (their
bytes are listed, with an estimate of the time on the links: gathered bytes over the bandwidth of a
chip, twice that for a sum), host and input, and whatever the hardware does at once.
"""

import collections
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pod.topologies import Generation

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
NOT_AN_ESTIMATE = 2**50  # the compiler writes 2^60 where it has none
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}
PASSES = {"all-reduce": 2}  # of the bytes over a chip's links; 1 for all others
SCOPES = ("blocks", "statistics", "roots", "preconditioning", "gather")  # of optim.shampoo

Computation = list[str]


@functools.cache
def _pattern(text: str) -> re.Pattern:
    return re.compile(text)


def _find(pattern: str, line: str) -> str | None:
    found = _pattern(pattern).search(line)
    return found[1] if found else None


def computations(text: str) -> tuple[dict[str, Computation], str]:
    """Returns {name: its instructions, one a line} and the name of the entry."""
    found: dict[str, Computation] = {}
    entry, name = "", ""
    for line in text.splitlines():
        header = _pattern(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$").match(line)
        if header:
            name = header[2]
            found[name] = []
            entry = name if header[1] else entry
        elif line.startswith("}"):
            name = ""
        elif name and " = " in line:
            found[name].append(line.strip())
    return found, entry


def part_of(op_name: str) -> str:
    """Which part of a training step an instruction belongs to, by the scopes in its op_name."""
    scopes = op_name.split("/")
    if "optimizer" in scopes:
        inner = scopes[scopes.index("optimizer") :]
        return next((scope for scope in SCOPES if scope in inner), "optimizer")
    if any("transpose(" in scope for scope in scopes):
        return "backward"
    if any("jvp(" in scope for scope in scopes):
        return "forward"
    return "all_reduce" if "all_reduce" in scopes else "other"


def trips(loop: str, found: Mapping[str, Computation]) -> int | None:
    """How often a `while` instruction runs its body; None if the text does not tell.

    The compiler's own count where there is one, else the bound of a condition `i < constant`, as
    every fori_loop, scan and map of JAX has it, counting from 0.
    """
    known = _find(r'known_trip_count"?:\{"n":"(\d+)"', loop)
    if known:
        return int(known)
    condition = found[_find(r"condition=%?([\w.\-]+)", loop) or ""]
    root = next((line for line in condition if line.startswith("ROOT")), "")
    bound = _find(r"compare\(%?[\w.\-]+, %?([\w.\-]+)\), direction=LT", root)
    constants = [line for line in condition if bound and line.startswith(f"%{bound} ")]
    value = _find(r"constant\((\d+)\)", constants[0]) if constants else None
    return int(value) if value else None


class _Sum:
    """Cycles by part of what is reached from the entry, and the collectives on the way."""

    def __init__(self, found: Mapping[str, Computation]):
        self.found = found
        self.cycles: collections.Counter[str] = collections.Counter()
        self.moved: dict[str, collections.Counter[str]] = {}
        self.linked: collections.Counter[str] = collections.Counter()  # bytes x passes by part
        self.unknown_loops = 0

    def add(self, name: str, times: int = 1, outer: str = "") -> None:
        """Adds a computation that runs `times`; instructions without a name belong to `outer`."""
        for line in self.found[name]:
            op_name = _find(r'op_name="([^"]*)"', line) or outer
            if " while(" in line:
                count = trips(line, self.found)
                self.unknown_loops += count is None
                for key in ("body", "condition"):
                    self.add(_called(line, key), times * (count or 1), op_name)
            elif " conditional(" in line:
                self._add_dearest(_branches(line), times, op_name)
            elif " call(" in line:
                self.add(_called(line, "to_apply"), times, op_name)
            else:
                cycles = int(_find(r'"estimated_cycles":"(\d+)"', line) or 0)
                if 0 < cycles < NOT_AN_ESTIMATE:
                    self.cycles[part_of(op_name)] += cycles * times
                self._add_collective(line, times, op_name)

    def _add_dearest(self, branches: Sequence[str], times: int, op_name: str) -> None:
        sums = []
        for branch in branches:
            one = _Sum(self.found)
            one.add(branch, times, op_name)
            sums.append(one)
        dearest = max(sums, key=lambda s: s.cycles.total())
        self.cycles.update(dearest.cycles)
        self.linked.update(dearest.linked)
        self.unknown_loops += dearest.unknown_loops
        for kind, moved in dearest.moved.items():
            self.moved.setdefault(kind, collections.Counter()).update(moved)

    def _add_collective(self, line: str, times: int, op_name: str) -> None:
        found = _pattern(rf" = (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(").search(line)
        if not found:
            return
        shapes = _pattern(r"(\w+)\[([\d,]*)\]").findall(found[1])
        sizes = [_n_bytes(dtype, dims) for dtype, dims in shapes if dtype in BYTES]
        if found[3] and found[2] != "all-reduce":  # (operands, results)
            sizes = sizes[len(sizes) // 2 :]
        moved = self.moved.setdefault(found[2], collections.Counter())
        moved.update(count=times, bytes=sum(sizes) * times)
        self.linked[part_of(op_name)] += PASSES.get(found[2], 1) * sum(sizes) * times


def _called(line: str, key: str) -> str:
    return _find(rf"{key}=%?([\w.\-]+)", line) or ""


def _branches(line: str) -> list[str]:
    listed = _find(r"branch_computations=\{([^}]*)\}", line)
    if listed:
        return [name.strip().lstrip("%") for name in listed.split(",")]
    return [_called(line, "true_computation"), _called(line, "false_computation")]


def _n_bytes(dtype: str, dims: str) -> int:
    size = BYTES[dtype]
    for dim in dims.split(","):
        size *= int(dim) if dim else 1
    return size


def estimate(text: str, generation: Generation) -> dict[str, Any]:
    """Returns cycles, seconds by part, collectives and their time, of a compiled program's text."""
    found, entry = computations(text)
    total = _Sum(found)
    total.add(entry)
    hertz, per_second = generation.clock_mhz * 1e6, generation.interconnect_bytes_per_second
    return {
        "estimated_cycles": total.cycles.total(),
        "compute_seconds": total.cycles.total() / hertz,
        "compute_seconds_by_part": {k: v / hertz for k, v in total.cycles.most_common()},
        "collectives": {kind: dict(moved) for kind, moved in sorted(total.moved.items())},
        "link_seconds": total.linked.total() / per_second,
        "link_seconds_by_part": {k: v / per_second for k, v in total.linked.most_common()},
        "loops_counted_once": total.unknown_loops,
    }
