"""README's two tables, written anew by python -m reporting.claims.

The published claims beside what is predicted and what was run; and what the studies found.
"""

import collections
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from errors import DONE, USER_ERROR, UserError
from pod import predict
from reporting import archive, collect, document, markdown_table, output, published
from run import files

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- claims: python -m reporting.claims -->", "<!-- end of claims -->"
STUDIES = "<!-- studies: python -m reporting.claims -->", "<!-- end of studies -->"
ANSWERS = {
    "grows": "it grows",
    "shrinks": "it shrinks",
    "no change shown": "no change is shown",
    "too few seeds to show any change": "too few seeds could show any change",
}


def reports() -> dict[str, dict[str, Any]]:
    """Returns the reports of the committed studies, by the names of their folders."""
    folders = sorted(path.parent for path in (ROOT / "results").glob(f"*/{archive.NAME}"))
    return {folder.name: document.build(*collect.collect([folder]))[0] for folder in folders}


def table() -> str:
    """Markdown: each published claim, its predicted time, and what our studies found, if run."""
    rows = [row for report in reports().values() for row in report["rows"]]
    entries = [e for e in published.load() if e["source"].endswith("scalable_shampoo/README.md")]
    seconds = predicted()
    lines = [
        (f"`{e['label']}`", e["published"], seconds.get(e["recipe"], "none"), e["here"])
        for e in published.table(entries, rows)
    ]
    return "\n".join(markdown_table.table(("recipe", "published", "predicted time", "ours"), lines))


def predicted() -> dict[str, str]:
    """The time of a recipe's run on a v3-256 as results/pod_plan estimates it, by recipe."""
    plans = [
        files.read_json(file) for file in sorted((ROOT / "results" / "pod_plan").glob("*.json"))
    ]
    found = predict.predictions(plans)
    seconds = {one.recipe: one.anchored_seconds for one in found}
    words = {recipe: f"{s:.0f} s (estimate)" for recipe, s in seconds.items() if s is not None}
    return words | {predict.ANCHOR: "the anchor of the others"}


def studies() -> str:
    """Markdown: the steps that each optimizer needed, by study, and what the batch size changed."""
    committed = reports()
    every = {name: _longest_ladders(report) for name, report in committed.items()}
    found = {name: ladders for name, ladders in every.items() if ladders}
    names = list(dict.fromkeys(_optimizer(ladder) for of in found.values() for ladder in of))
    rows = []
    for name, ladders in found.items():
        steps = {_optimizer(ladder): _steps(ladder) for ladder in ladders}
        target = f"{100 * ladders[0]['target_accuracy']:g} % on {ladders[0]['dataset']}"
        rows.append([f"[{target}](results/{name}/README.md)", *(steps.get(n, "-") for n in names)])
    lines = markdown_table.table(("steps to a median of", *names), rows)
    if found:
        shown = [
            f"{_shown(committed[name], of)} on {of[0]['dataset']}" for name, of in found.items()
        ]
        lines += ["", f"Differences shown, of all pairs: {', '.join(shown)}; the pages name them."]
    for name, report in committed.items():
        if tests := report["batches"]:
            batches = tests[0]["batches"]
            others = dict.fromkeys(test["other"] for test in tests)
            said = ", ".join(f"over `{o.partition(':')[0]}` {_answers(tests, o)}" for o in others)
            lines += [
                "",
                f"Does Shampoo's advantage grow with the batch, from {batches[0]:,} to "
                f"{batches[-1]:,}? {said[:1].upper()}{said[1:]} "
                f"([all accuracies, and what was tuned again](results/{name}/README.md)).",
            ]
    return "\n".join(lines)


def _longest_ladders(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the ladders of one data set and batch size: the first that has the longest."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for ladder in report["ladders"]:
        groups.setdefault((ladder["dataset"], ladder["global_batch_size"]), []).append(ladder)
    return max(groups.values(), key=lambda of: max(len(x["budgets"]) for x in of), default=[])


def _shown(report: Mapping[str, Any], ladders: Sequence[Mapping[str, Any]]) -> str:
    """Returns how many of the ladders' comparisons show a difference, as "3 of 10"."""
    task = {(ladder["dataset"], ladder["global_batch_size"]) for ladder in ladders}
    verdicts = [
        test["verdict"]
        for test in report["comparisons"]
        if test["measure"] == "ladder" and (test["dataset"], test["global_batch_size"]) in task
    ]
    n = sum(verdict in ("fewer steps", "more steps") for verdict in verdicts)
    return f"{n} of {len(verdicts)}"


def _answers(tests: Sequence[Mapping[str, Any]], other: str) -> str:
    """Returns how often each verdict was found over one other optimizer."""
    found = [test["verdict"] for test in tests if test["other"] == other]
    counts = collections.Counter(found).most_common()
    return " and ".join(f"{ANSWERS[verdict]} in {n} of {len(found)}" for verdict, n in counts)


def _optimizer(ladder: Mapping[str, Any]) -> str:
    return f"`{ladder['recipe'].partition(':')[0]}`"


def _steps(ladder: Mapping[str, Any]) -> str:
    if ladder["smallest_budget"] is None:
        return f"over {ladder['budgets'][-1]}"
    if ladder["at_the_smallest"]:
        return f"{ladder['budgets'][0]} or fewer"
    return f"{ladder['interpolated']:.1f}"


def replaced(page: str, begin: str, end: str, content: str) -> str:
    """The page with other content between its two markers.

    Raises:
      UserError: they do not stand there once each, in this order.
    """
    if (page.count(begin), page.count(end)) != (1, 1) or page.index(begin) > page.index(end):
        raise UserError(f"needs {begin} and, after it, {end}, each once")
    return f"{page[: page.index(begin)]}{begin}\n{content}\n{page[page.index(end) :]}"


def write(page: Path, inserted: Callable[[str], str]) -> int:
    """Writes a page anew; returns the exit status: 0, or 2 after one message for the user."""
    try:
        output.write({page: inserted(page.read_text("utf-8"))})
    except (OSError, UserError) as error:
        print(f"error: {page.name}: {error}", file=sys.stderr)
        return USER_ERROR
    return DONE


def inserted(readme: str) -> str:
    """The README with its tables replaced by the present ones."""
    return replaced(replaced(readme, BEGIN, END, table()), *STUDIES, studies())


if __name__ == "__main__":
    sys.exit(write(ROOT / "README.md", inserted))
