"""Plans as text: a summary for the terminal, and the page results/pod_plan with its figure."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from pod import predict
from run import files

MIB_PER_GIB = 1024
COLOURS = {  # Okabe and Ito's palette
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "all_reduce": "#999999",
    "statistics": "#F0E442",
    "roots": "#D55E00",
    "preconditioning": "#009E73",
    "gather": "#CC79A7",
    "blocks": "#E69F00",
    "optimizer": "#8C564B",
    "other": "#DDDDDD",
}
STYLE: dict[Any, Any] = {"svg.hashsalt": "report", "svg.fonttype": "path", "font.size": 10,
         "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
TITLE = """# Estimated memory and time on a TPU pod

`make plan` generates this page with the TPU compiler, on a machine without a TPU. It compiles the
real train and eval step of each recipe for the devices of the topology and reads the compiled
programs. Nothing was run on a pod.

* **Estimated, not measured.** Time is the compiler's estimated cycles at the nominal clock, with
  loops multiplied by their trip counts, plus an estimate of the time on the links: bytes over
  {link:.0f} GB/s per chip (the published link rate at an assumed efficiency of 50 %), twice for a
  sum. No overlap is assumed.
* **Left out:** host input, launch, waiting for the slowest device, writing checkpoints.
* **Anchored** times are estimates multiplied by one ratio: the published time of {anchor}
  ({low:g}-{high:g} s) over the estimate of that run. The anchored time of that run itself is
  therefore no prediction, and topologies other than {topology} have no anchored times.
"""


def summary(plan: Mapping[str, Any]) -> str:
    """Returns a few lines for the terminal: memory, estimated time and communication."""
    lines = [
        f"recipe        {plan['recipe']}, batch {plan['global_batch_size']:,} on "
        f"{plan['topology']}: {plan['n_devices']} devices, {plan['device_batch_size']} each"
    ]
    for name, label in (("train_step", "train step"), ("eval_step", "eval step")):
        lines.append(f"{label:<13} {memory(plan[name], plan['hbm_gib'])}")
        if plan[name]["fits"]:
            lines += [f"{'':13} {line}" for line in step_costs(plan[name])]
    if "largest_global_batch_size" in plan:
        largest = plan["largest_global_batch_size"]
        text = (
            f"largest halving of the batch that fits: {largest:,}" if largest else "no batch fits"
        )
        lines.append(f"{'':13} {text}")
    lines.append(f"{'roots':<13} {plan['roots_per_device']} per device")
    return "\n".join(lines)


def memory(step: Mapping[str, Any], hbm_gib: float) -> str:
    """Returns whether a step fits, in GiB of one device."""
    needed = step["needed_mib"] / MIB_PER_GIB
    if step["fits"]:
        return f"fits: {needed:.2f} of {hbm_gib:g} GiB per device"
    exceeded = step["exceeded_mib"] / MIB_PER_GIB
    return f"DOES NOT FIT: needs {needed:.2f} GiB per device, {exceeded:.2f} GiB too much"


def step_costs(step: Mapping[str, Any]) -> list[str]:
    """Returns lines with the time, work and communication of a step that fits."""
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
        f"{1e3 * step['optimal_seconds']:.2f} ms in the compiler's optimal_seconds; "
        f"{step['flops'] / 1e9:.0f} GFLOP; {step['stablehlo_lines']:,} StableHLO lines; compiled "
        f"in {step['compile_seconds']['cpu']:.0f} CPU-s",
    ]


def write(folder: epath.Path, plans: Sequence[Mapping[str, Any]], link_gigabytes: float) -> None:
    """Writes README.md, steps.svg and predictions.json."""
    predictions = {
        one.recipe: {"anchored_seconds": one.anchored_seconds} for one in predict.predictions(plans)
    }
    files.write_json(folder / "predictions.json", predictions)
    files.write_text(folder / "README.md", markdown(plans, link_gigabytes))
    files.write_text(folder / "steps.svg", figure(plans))


def figure(plans: Sequence[Mapping[str, Any]]) -> str:
    """Returns an SVG with one bar per recipe: estimated milliseconds of a step by part."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    fitting = [p for p in plans if p["train_step"]["fits"]]
    with plt.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(8, 0.6 * len(fitting) + 1.2))
        left = [0.0] * len(fitting)
        for part, colour in COLOURS.items():
            widths = [1e3 * predict.parts(p["train_step"]).get(part, 0.0) for p in fitting]
            ax.barh(range(len(fitting)), widths, left=left, color=colour, label=part)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        ax.set_yticks(range(len(fitting)), [p["recipe"] for p in fitting])
        ax.invert_yaxis()
        ax.set_xlabel("estimated ms per step (cycles and links)")
        ax.legend(ncols=5, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.25))
        buffer = io.StringIO()
        fig.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(fig)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def markdown(plans: Sequence[Mapping[str, Any]], link_gigabytes: float) -> str:
    """Returns the page."""
    low, high = predict.published_runs()[predict.ANCHOR]["seconds"]
    text = TITLE.format(link=link_gigabytes, anchor=f"`{predict.ANCHOR}`", low=low, high=high,
                        topology=predict.PUBLISHED_TOPOLOGY)  # fmt: skip
    sections = _memory, _times, _overhead, _optimizer_shares, _versions
    return text + "\n".join(line for section in sections for line in section(plans))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    first, *lines = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return [first, "|---" * len(head) + "|", *lines]


def _memory(plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "\n## Does it fit?\n"
    rows = []
    for p in plans:
        train, evaluate = (memory(p[s], p["hbm_gib"]) for s in ("train_step", "eval_step"))
        if p.get("largest_global_batch_size"):
            train += f"; {p['largest_global_batch_size']:,} does"
        sizes = str(p["device_batch_size"]), train, evaluate, str(p["roots_per_device"])
        rows.append((f"`{p['recipe']}`", p["topology"], *sizes))
    head = ("recipe", "topology", "device batch", "train step", "eval step", "roots per device")
    yield from _table(head, rows)


def _times(plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "\n## How long would it take?\n"
    rows = []
    by_recipe = {p["recipe"]: p for p in plans}
    for one in predict.predictions(plans):
        plan = by_recipe[one.recipe]
        published = "{:g}-{:g}".format(*one.published_seconds) if one.published_seconds else "none"
        if one.anchored_seconds is None:
            anchored = "-"
        else:
            is_anchor = one.recipe == predict.ANCHOR
            anchored = "(the anchor)" if is_anchor else f"{one.anchored_seconds:.0f}"
        link = 1e3 * plan["train_step"]["link_seconds"]
        times = f"{1e3 * one.step_seconds:.1f}", f"{link:.1f}", f"{one.run_seconds:.0f}"
        rows.append((f"`{one.recipe}`", str(plan["total_steps"]), *times, anchored, published))
    head = ("recipe", "steps", "ms per step", "link ms", "s per run", "anchored s",
            "published s")  # fmt: skip
    yield from _table(head, rows)
    yield "\n![Estimated time of a step by part](steps.svg)"


def _overhead(plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    overhead = predict.overhead_seconds(plans)
    if overhead is None:
        return
    yield "\n## What does Shampoo cost?\n"
    yield (
        f"A step of `{predict.METHOD}` is estimated to take {1e3 * overhead:.1f} ms longer than "
        f"one of `{predict.BASELINE}`, links included. In the published runs the difference is "
        f"{1e3 * predict.published_overhead_seconds():.0f} ms."
    )


def _optimizer_shares(plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    selected = [
        p for p in plans if p["recipe"].startswith("shampoo:mlperf") and p["train_step"]["fits"]
    ]
    if len(selected) < 2:
        return
    yield "\nThe optimizer's share of a step falls as the batch grows, as its authors expect:\n"
    rows = []
    for p in selected:
        step = predict.step_seconds(p["train_step"])
        optimizer = predict.optimizer_seconds(p["train_step"])
        batch = p["global_batch_size"]
        times = f"{1e3 * step:.1f}", f"{1e3 * optimizer:.1f}"
        shares = f"{optimizer / step:.1%}", f"{1e6 * optimizer / batch:.3f}"
        rows.append((f"`{p['recipe']}`", f"{batch:,}", *times, *shares))
    head = "recipe", "batch", "ms per step", "optimizer ms", "share", "optimizer us per image"
    yield from _table(head, rows)


def _versions(plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    versions = {", ".join(f"{k} {v}" for k, v in p["versions"].items()) for p in plans}
    yield f"\nCompiled with {'; '.join(sorted(versions))}. The JSON files hold all numbers.\n"
