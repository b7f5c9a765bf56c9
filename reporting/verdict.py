"""A comparison in plain words. The words are pinned by tests: people quote them."""

from __future__ import annotations

from typing import Any

from reporting.inference import ALPHA, smallest_p


def verdict(test: dict[str, Any]) -> str:
    """Returns "fewer steps", "more steps", "higher|lower final accuracy" or "no difference ...".

    A difference is claimed for a against b only if the corrected p is at most 5 % and the medians
    do not point the other way.
    """
    n = (
        f"n = {test['n'][0]}"
        if test["n"][0] == test["n"][1]
        else "n = {} and {}".format(*test["n"])
    )
    if smallest_p(*test["n"]) > ALPHA:
        return f"no difference shown with {n}: too few seeds to show any"
    if test["p_adjusted"] > ALPHA or _medians_disagree(test):
        return f"no difference shown with {n}"
    if test["measure"] == "B":
        return "higher final accuracy" if test["lower"] else "lower final accuracy"
    return "fewer steps" if test["lower"] else "more steps"


def _medians_disagree(test: dict[str, Any]) -> bool:
    if test["measure"] == "B":
        difference = test["difference"]
        return difference is not None and (difference <= 0 if test["lower"] else difference >= 0)
    ratio = test["ratio"]
    return ratio is not None and (ratio >= 1 if test["lower"] else ratio <= 1)


def sentence(test: dict[str, Any]) -> str:
    """Returns one line: who, what, by how much, on which evidence."""
    a, b, said = test["a"], test["b"], test["verdict"]
    where = {"A": "steps to the target", "B": "accuracy at the budget", "ladder": "budget ladder"}
    if said.startswith("not comparable: other batch"):
        return f"{a} and {b}: {said}"
    if said.startswith("not "):
        return f"{a} and {b}, {where[test['measure']]}: {said}"
    evidence = f"{_size(test)}p = {test['p_adjusted']:.2g}"
    if said.startswith("no "):
        return f"{a} and {b}, {where[test['measure']]}: {said} ({evidence})"
    verb = "ends with" if test["measure"] == "B" else "needs"
    return f"{a} {verb} {said} than {b} ({evidence})"


def _size(test: dict[str, Any]) -> str:
    interval = test["ci95"] or [None, None]
    if test["measure"] == "B":
        if test["difference"] is None:
            return ""
        ends = " to ".join("?" if x is None else f"{100 * x:+.2f}" for x in interval)
        return f"{100 * test['difference']:+.2f} points, 95 % interval {ends}; "
    if test["ratio"] is None:
        return "a median is beyond the budget; "
    ends = " to ".join("?" if x is None else f"{x:.3f}" for x in interval)
    return f"ratio {test['ratio']:.3f}, 95 % interval {ends}; "
