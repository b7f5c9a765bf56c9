"""Generated tables of README.md and docs/recipes.md: python -m reporting.readme updates them.

README.md shows the published results beside predictions and our runs, and the results of the
studies. docs/recipes.md shows the values of the published recipes.
"""

import collections
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import command_line
from errors import DONE, USER_ERROR, UserError
from reporting import archive, collect, document, output, published
from run import files

ROOT = Path(__file__).resolve().parent.parent
ANCHOR = "lars:mlperf_v07"  # its published time scales all predictions
ANSWERS = ("grows", "shrinks", "no change shown", "too few seeds to show any change")
TASK = "imagenet2012"  # only recipes for this data set were published
# Fields that a publication states or leaves open. Those of optimizer and schedule are added.
FIELDS = (
    "global_batch_size",
    "total_steps",
    "eval_every_steps",
    "target_accuracy",
    "mlperf_division",
    "label_smoothing",
    "dataset.image_size",
    "dataset.image_dtype",
    "dataset.crop_area_min",
    "dataset.shuffle_buffer_examples",
    "model.stage_sizes",
    "model.width",
    "model.bn_span",
    "model.bn_decay",
    "model.bn_epsilon",
    "model.compute_dtype",
    "model.logits_dtype",
)
MARKS = {"unverified": "(u)", "assumed": "(a)"}


def reports() -> dict[str, dict[str, Any]]:
    """Returns the reports of the committed studies by the names of their folders."""
    folders = sorted(path.parent for path in (ROOT / "results").glob(f"*/{archive.NAME}"))
    return {folder.name: document.build(*collect.collect([folder]))[0] for folder in folders}


def claims() -> str:
    """Returns a table of the published claims, their predicted times and our results."""
    rows = [row for report in reports().values() for row in report["rows"]]
    entries = [e for e in published.load() if e["source"].endswith("scalable_shampoo/README.md")]
    times = predicted_times()
    lines = [
        (f"`{e['label']}`", e["published"], times.get(e["recipe"], "none"), e["here"])
        for e in published.table(entries, rows)
    ]
    return "\n".join(output.table(("recipe", "published", "predicted time", "ours"), lines))


def predicted_times() -> dict[str, str]:
    """Returns the estimated time of each recipe's run on a v3-256; `make plan` writes the file."""
    predictions = files.read_json(ROOT / "results" / "pod_plan" / "predictions.json")
    seconds = {recipe: entry["anchored_seconds"] for recipe, entry in predictions.items()}
    times = {recipe: f"{s:.0f} s (estimate)" for recipe, s in seconds.items() if s is not None}
    return times | {ANCHOR: "the anchor of the others"}


def studies() -> str:
    """Returns the steps that each optimizer needs in each study, and the effect of the batch.

    Brackets contain bootstrap 95 % intervals, and n is the number of seeds at each budget.
    """
    committed = reports()
    ladders = {name: longest for name, r in committed.items() if (longest := _longest_ladders(r))}
    optimizers = list(dict.fromkeys(_optimizer(x) for some in ladders.values() for x in some))
    rows = []
    for name, some in ladders.items():
        steps = {_optimizer(ladder): _steps(ladder) for ladder in some}
        n = sorted({n for ladder in some for n in ladder["n"]})
        seeds = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
        dataset = some[0]["dataset"]
        target = f"{100 * some[0]['target_accuracy']:g} % on {dataset}, n = {seeds}"
        rows.append(
            [f"[{target}](results/{name}/README.md)", *(steps.get(o, "-") for o in optimizers)]
        )
    lines = output.table(("steps to a median of [95 %]", *optimizers), rows)
    if ladders:
        counts = [
            f"{_n_shown(committed[name], some)} pairs on {some[0]['dataset']}"
            for name, some in ladders.items()
        ]
        lines += ["", f"A difference is shown for {', '.join(counts)}. The linked pages list them."]
    for name, report in committed.items():
        if report["batches"]:
            lines += ["", *_batch_effect(report["batches"], f"results/{name}/README.md")]
    return "\n".join(lines)


def _longest_ladders(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the ladders of the first data set and batch size that has the longest one."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for ladder in report["ladders"]:
        groups.setdefault((ladder["dataset"], ladder["global_batch_size"]), []).append(ladder)
    return max(groups.values(), key=lambda some: max(len(x["budgets"]) for x in some), default=[])


def _n_shown(report: Mapping[str, Any], ladders: Sequence[Mapping[str, Any]]) -> str:
    """Returns the number of comparisons of these ladders with a difference, as "3 of 10"."""
    tasks = {(ladder["dataset"], ladder["global_batch_size"]) for ladder in ladders}
    verdicts = [
        test["verdict"]
        for test in report["comparisons"]
        if test["measure"] == "ladder" and (test["dataset"], test["global_batch_size"]) in tasks
    ]
    n_shown = sum(verdict in ("fewer steps", "more steps") for verdict in verdicts)
    return f"{n_shown} of {len(verdicts)}"


def _batch_effect(tests: Sequence[Mapping[str, Any]], link: str) -> list[str]:
    """Returns a sentence, then a table that counts the verdicts on each other optimizer."""
    batches = tests[0]["batches"]
    verdicts: dict[str, collections.Counter[str]] = {}
    for test in tests:
        verdicts.setdefault(test["other"], collections.Counter())[test["verdict"]] += 1
    answers = [answer for answer in ANSWERS if any(counts[answer] for counts in verdicts.values())]
    rows = [
        [f"`{other.partition(':')[0]}`", *(f"{counts[a]} of {counts.total()}" for a in answers)]
        for other, counts in verdicts.items()
    ]
    return [
        f"Change of Shampoo's advantage in final accuracy from batch {batches[0]:,} to "
        f"{batches[-1]:,}, at each number of examples ([accuracies and re-tuned "
        f"hyperparameters]({link})):",
        "",
        *output.table(("advantage over", *answers), rows),
    ]


def _optimizer(ladder: Mapping[str, Any]) -> str:
    return f"`{ladder['recipe'].partition(':')[0]}`"


def _steps(ladder: Mapping[str, Any]) -> str:
    if ladder["smallest_budget"] is None:
        return f"over {ladder['budgets'][-1]}"
    if ladder["at_the_smallest"]:
        return f"{ladder['budgets'][0]} or fewer"
    if ladder["ci95"] is None:
        return f"{ladder['interpolated']:.1f}"
    ends = [
        f"over {ladder['budgets'][-1]}" if end is None else f"{end:.1f}" for end in ladder["ci95"]
    ]
    return f"{ladder['interpolated']:.1f} [{', '.join(ends)}]"


def recipes() -> list[ConfigDict]:
    """Returns the recipes of configs/ that reproduce a publication, ordered by file."""
    names = [
        f"{name}:{variant}"
        for name in command_line.optimizers()
        for variant in getattr(importlib.import_module(f"configs.{name}"), "VARIANTS", ())
    ]
    configs = [command_line.load(name) for name in names]
    return [config for config in configs if config.dataset.name == TASK]


def values() -> str:
    """Returns a table of the fields in which the recipes differ, then a list of the others."""
    configs = recipes()
    fields = dict.fromkeys(FIELDS)
    for section in ("schedule", "optimizer"):
        for config in configs:
            fields |= dict.fromkeys(f"{section}.{name}" for name in config[section])
    del fields["optimizer.name"]
    cells = {field: [_cell(config, field) for config in configs] for field in fields}
    same = {field: row[0] for field, row in cells.items() if len(set(row)) == 1}
    lines = [
        *output.table(
            ("field", *(f"`{config.recipe}`" for config in configs)),
            [(f"`{field}`", *row) for field, row in cells.items() if field not in same],
        ),
        "",
        "The same in all of them:",
        ", ".join(f"`{field}` {text}" for field, text in same.items()) + ".",
    ]
    return "\n".join(lines)


def _cell(config: ConfigDict, field: str) -> str:
    """Returns the value of a dotted field and its marks; "" if the recipe lacks the field."""
    value: Any = config
    for part in field.split("."):
        value = value[part] if value is not None and part in value else None
    marks = [mark for flag, mark in MARKS.items() if field in config[flag]]
    return " ".join(["" if value is None else str(value), *marks]).strip()


TABLES = {"README.md": (claims, studies), "docs/recipes.md": (values,)}


def markers(name: str) -> tuple[str, str]:
    """Returns the lines before and after the generated table of this name."""
    return f"<!-- {name}: python -m reporting.readme -->", f"<!-- end of {name} -->"


def update(page: str) -> str:
    """Returns the text of one of the pages in `TABLES` with its tables made anew.

    Raises:
      UserError: the two markers of a table do not occur once each, in order.
      OSError: the page or a source of a table cannot be read.
    """
    text = (ROOT / page).read_text("utf-8")
    for table in TABLES[page]:
        begin, end = markers(table.__name__)
        if (text.count(begin), text.count(end)) != (1, 1) or text.index(begin) > text.index(end):
            raise UserError(f"{page}: needs {begin} and, after it, {end}, each once")
        text = f"{text[: text.index(begin)]}{begin}\n{table()}\n{text[text.index(end) :]}"
    return text


def main() -> int:
    """Updates all pages or none; returns the exit status."""
    try:
        output.write({ROOT / page: update(page) for page in TABLES})
    except (OSError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return DONE


if __name__ == "__main__":
    sys.exit(main())
