"""The figures of one plan on a screen."""

from collections.abc import Mapping
from typing import Any

MIB_PER_GIB = 1024


def text(figures: Mapping[str, Any]) -> str:
    """A few lines: does it fit, what does a step take, what does it move. Estimates say so."""
    n, batch = figures["n_devices"], figures["global_batch_size"]
    lines = [
        f"recipe        {figures['recipe']}, batch {batch:,} on {figures['topology']}: "
        f"{n} devices, {figures['device_batch_size']} examples each"
    ]
    for name, label in (("train_step", "train step"), ("eval_step", "eval step")):
        step = figures[name]
        lines.append(f"{label:<13} {memory(step, figures['hbm_gib'])}")
        if step["fits"]:
            lines += [f"{'':13} {line}" for line in work(step)]
    if "largest_global_batch_size" in figures:
        largest = figures["largest_global_batch_size"]
        lines.append(
            f"{'':13} the largest halving of the batch that fits: {largest:,}"
            if largest
            else f"{'':13} no batch fits"
        )
    lines.append(f"{'roots':<13} {figures['roots_per_device']} a device")
    return "\n".join(lines)


def memory(step: Mapping[str, Any], hbm_gib: float) -> str:
    """Whether a step fits, in GiB of a device."""
    needed = step["needed_mib"] / MIB_PER_GIB
    if step["fits"]:
        return f"fits: {needed:.2f} of {hbm_gib:g} GiB a device"
    return (
        f"DOES NOT FIT: {needed:.2f} GiB needed, "
        f"{step['exceeded_mib'] / MIB_PER_GIB:.2f} GiB too much"
    )


def work(step: Mapping[str, Any]) -> list[str]:
    """Time, work and communication of a step that fits."""
    parts = ", ".join(
        f"{part} {1e3 * seconds:.2f}"
        for part, seconds in step["compute_seconds_by_part"].items()
        if seconds >= 5e-6
    )
    moved = ", ".join(
        f"{m['count']} {kind} of {m['bytes'] / 1e6:.1f} MB"
        for kind, m in step["collectives"].items()
    )
    return [
        f"{1e3 * step['compute_seconds']:.2f} ms of estimated cycles ({parts})",
        f"{1e3 * step['link_seconds']:.2f} ms on the links, an estimate ({moved or 'nothing'})",
        f"{1e3 * step['optimal_seconds']:.2f} ms by the compiler's optimal_seconds; "
        f"{step['flops'] / 1e9:.0f} GFLOP; {step['stablehlo_lines']:,} StableHLO lines; compiled "
        f"in {step['compile_seconds']['cpu']:.0f} CPU-s",
    ]
