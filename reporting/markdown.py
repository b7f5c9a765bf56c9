"""Renders a study's README.md and its figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from errors import UserError
from reporting import figures, html, provenance, screen
from reporting.output import table
from reporting.rows import Row
from run import files

OTHER_BATCH = "not comparable: other batch"  # the titles state it once


def page(path: Path, report: dict[str, Any], rows: Sequence[Row]) -> dict[Path, str]:
    """Returns {file: text} of the page and of the figures beside it.

    The trials are those of the trials*.json beside it.
    """
    pictures = drawn(report, rows)
    trials = sorted(path.parent.glob("trials*.json"))
    figures = {path.parent / name: svg + "\n" for name, svg in pictures.items()}
    return figures | {path: render(report, rows, list(pictures), trials)}


def drawn(report: dict[str, Any], rows: Sequence[Row]) -> dict[str, str]:
    """Returns {file name: SVG}: the ladders, curves by task, and the batch sizes."""
    found: dict[str, str | None] = {}
    tasks: dict[Any, list[Row]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    batches = [batch for _, batch, _ in tasks]
    for i, some in enumerate(tasks.values()):
        where = f"{batches[i]}" if batches.count(batches[i]) == 1 else f"{batches[i]}_{i}"
        found[f"ladder_{where}.svg"] = figures.ladders(some)
        found[f"curves_{where}.svg"] = figures.accuracy_curves(some)
    found["batches.svg"] = figures.batches(report["batches"])
    return {name: svg for name, svg in found.items() if svg}


def render(
    report: dict[str, Any], rows: Sequence[Row], pictures: Sequence[str], trials: Sequence[Path]
) -> str:
    """Returns the page."""
    datasets = sorted({row.first.dataset for row in rows})
    lines = [
        f"# {', '.join(datasets)}: runs and results",
        "",
        "`report.py` generates this page from the records and curves of all runs in this folder.",
        "",
        report["proxy_note"] or "",
        "",
        "## Verdict",
        "",
        *_by_batch(
            [t for t in report["comparisons"] if not t["verdict"].startswith(OTHER_BATCH)],
            screen.verdict_lines,
        ),
        *_batches(report["batches"]),
        *_ladders(report["ladders"]),
        *(f"![{name.removesuffix('.svg')}]({name})\n" for name in pictures),
        *_runs(report["rows"]),
        *_tuning(trials, rows),
        *_cost(rows),
        *_provenance(rows),
        *_failed(report),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _by_batch(
    entries: Sequence[dict[str, Any]],
    lines: Callable[[Sequence[dict[str, Any]]], Sequence[str]],
) -> Iterator[str]:
    """Yields the lines of the entries, with a title for each data set and batch size."""
    groups: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault((entry["dataset"], entry["global_batch_size"]), []).append(entry)
    for (dataset, batch), some in groups.items():
        if len(groups) > 1:
            yield f"{dataset}, batch {html.number(batch)}\n"
        yield from (f"* {line}" for line in lines(some))
        yield ""


def _batches(tests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if tests:
        yield "## Does Shampoo's advantage grow with the batch?\n"
        yield (
            "Final accuracy after the same number of examples, paired by seed. An advantage also "
            "grows if the other optimizer loses accuracy, which the tables under Runs show. Only "
            "the hyperparameters listed under Tuning were re-tuned at each batch size. All others "
            "are those of the recipe, including numbers of steps such as "
            "`start_preconditioning_step`, which are a larger share of fewer steps.\n"
        )
        yield from (f"* {test['sentence']}" for test in tests)
        yield ""
        batches = sorted({batch for test in tests for batch in test["batches"]})
        head = ["examples", "over", *(f"batch {batch:,}" for batch in batches)]
        lines = [[f"{t['n_examples']:,}", t["other"], *_points(t, batches)] for t in tests]
        yield from table(head, lines)
        yield ""


def _points(test: Mapping[str, Any], batches: Sequence[int]) -> list[str]:
    found = {
        batch: f"{100 * a['median']:+z.2f} [{100 * a['ci95'][0]:+z.2f}, {100 * a['ci95'][1]:+z.2f}]"
        for batch, a in zip(test["batches"], test["advantages"], strict=True)
    }
    return [f"{found[batch]} points" if batch in found else "-" for batch in batches]


def _ladders(ladders: Sequence[dict[str, Any]]) -> Iterator[str]:
    if ladders:
        yield "## Budget ladders\n"
        yield "The smallest number of steps at which the median over seeds reaches the target.\n"
        yield from _by_batch(ladders, screen.ladder_lines)


def _runs(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## Runs\n"
    head = ("recipe", "steps", "n", "reached", "diverged", "steps to target [95 %]",
            "final accuracy [quartiles]", "[95 %]")  # fmt: skip
    for title, found in screen.tasks(rows):
        yield f"{title}\n"
        yield from table(head, [_cells(row) for row in found])
        yield ""
        flags: dict[str, dict[str, None]] = {}
        for row in found:
            for flag in row["flags"]:
                flags.setdefault(flag, {})[row["recipe"]] = None
        yield from (f"* {', '.join(recipes)}: {flag}" for flag, recipes in flags.items())
        if flags:
            yield ""


def _cells(row: dict[str, Any]) -> list[str]:
    accuracy = row["final_accuracy"]
    ends = accuracy["ci95"]
    return [
        *screen.counts(row),
        screen.steps_cell(row),
        screen.accuracy_cell(row).rpartition(" ")[0] if accuracy["n_measured"] else "not measured",
        "-" if ends is None else "[" + ", ".join(map(screen.fraction, ends)) + "]",
    ]


def _tuning(paths: Sequence[Path], rows: Sequence[Row]) -> Iterator[str]:
    """Yields the chosen trials of each file.

    Args:
      rows: rows of this page. Their recipes and seeds are compared with those of the trials.
    """
    if not paths:
        return
    lines, alike, fresh = [], True, True
    seeds = {run.seed for row in rows for run in row.runs}
    untuned = {row.first.recipe for row in rows if row.first.kind == "run"}
    for file in paths:
        try:
            found = files.read_json(file)
            lines += [[f"[{file.name}]({file.name})", *_chosen(r, of)] for r, of in found.items()]
            trials = [trial for of in found.values() for trial in of["trials"]]
            fresh &= not {int(s) for trial in trials for s in trial["final_accuracy"]} & seeds
            alike &= len({len(of["trials"]) for of in found.values()}) == 1
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as e:
            raise UserError(f"{file}: not what sweep.py --trials writes ({e!r})") from e
        untuned -= set(found)
    yield "## Tuning\n"
    number = "the same number" if alike and not untuned else "NOT the same number"
    where = "seeds not used above" if fresh else "SEEDS THAT ARE ALSO USED ABOVE"
    none = f"; none for {', '.join(sorted(untuned))}" if untuned else ""
    yield (
        f"Quasi-random trials, {number} for every optimizer{none}, with {where} and the same "
        "evaluation images. The verdict holds for this tuning: with other or more trials, other "
        "hyperparameters may be chosen.\n"
    )
    head = ("all trials", "recipe", "trials", "seeds each", "chosen", "median accuracy")
    yield from table(head, lines)
    yield ""


def _chosen(recipe: str, found: Mapping[str, Any]) -> list[str]:
    """Returns the cells of one recipe's trials; without finished trials none is chosen.

    Raises:
      UserError: the chosen trial is not the best, or an accuracy is none.
    """
    trials, number = found["trials"], found["chosen"]
    n_seeds = [len(trial["final_accuracy"]) for trial in trials]
    ends = sorted({min(n_seeds), max(n_seeds)})
    cells = [recipe, str(len(trials)), " to ".join(map(str, ends))]
    medians = [trial["median"] for trial in trials if trial["median"] is not None]
    if any(not 0 <= median <= 1 for median in medians):
        raise UserError(f"{recipe}: a median accuracy outside of 0 to 1")
    if number is None:
        return [*cells, "none", "-"]
    if number < 0 or trials[number]["median"] != max(medians):
        raise UserError(f"{recipe}: chosen={number} is not the best trial")
    values = ", ".join(f"{k.split('.')[-1]} {v:g}" for k, v in trials[number]["values"].items())
    return [*cells, values, screen.fraction(trials[number]["median"])]


def _cost(rows: Sequence[Row]) -> Iterator[str]:
    rows = [row for row in rows if row.first.kind == "run"]  # logs do not contain it
    if not rows:
        return
    yield "## Cost\n"
    n_runs, (n_known, hours) = sum(row.n for row in rows), provenance.cpu_hours(rows)
    where = "" if n_known == n_runs else f" ({n_known:,} of them recorded it)"
    yield f"{n_runs:,} runs took {hours:.1f} CPU-hours{where}, without tuning. {html.COST}\n"
    lines = []
    for row in rows:
        cost = provenance.cost(row)
        numbers = [html.number(cost[key], 1) for key in ("cpu", "train", "images_per_second")]
        batch, steps = html.number(row.first.global_batch_size), str(row.first.total_steps)
        lines.append([row.name, batch, steps, *numbers])
    yield from table(("recipe", "batch", "steps", "CPU-s", "train s", "images/s"), lines)
    yield ""


def _provenance(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Provenance\n"
    found: dict[str, dict[str, None]] = {"commit": {}, "device": {}, "versions": {}}
    for row in rows:
        for key, texts in found.items():
            texts[provenance.origins(row)[key]] = None
    for key, texts in found.items():
        yield f"* {key}: {'; '.join(texts)}"
    yield ""


def _failed(report: dict[str, Any]) -> Iterator[str]:
    lines = screen.failed_lines(report)
    if lines:
        yield "## Failed runs\n"
        yield from (f"* {line}" for line in lines)
