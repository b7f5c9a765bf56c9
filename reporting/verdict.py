"""Describes a comparison in a sentence. Tests fix the wording, because people quote it."""

from typing import Any

from reporting.inference import ALPHA


def verdict(test: dict[str, Any]) -> str:
    """Returns "fewer steps", "more steps", "higher|lower final accuracy" or "no difference ...".

    A difference is claimed for a against b only if the corrected p is at most 5 % and the medians,
    where both are known, differ in the same direction.
    """
    n = seeds(test)
    if test["smallest_p"] * test["n_tests"] > ALPHA:
        among = f" in {test['n_tests']} comparisons" if test["n_tests"] > 1 else ""
        return f"no difference shown with {n}: too few seeds to show any{among}"
    if test["p_adjusted"] > ALPHA or _medians_disagree(test):
        return f"no difference shown with {n}"
    if test["measure"] == "B":
        return "higher final accuracy" if test["lower"] else "lower final accuracy"
    return "fewer steps" if test["lower"] else "more steps"


def seeds(test: dict[str, Any]) -> str:
    a, b = test["n"]
    return f"n = {a}" if a == b else f"n = {a} and {b}"


def _medians_disagree(test: dict[str, Any]) -> bool:
    """Returns whether the medians are equal, or their order contradicts that of the ranks."""
    if test["measure"] == "B":
        difference = test["difference"]
        if difference is None:
            a, b = test["median_diverged"]
            return a and not b if test["lower"] else b and not a
        return difference <= 0 if test["lower"] else difference >= 0
    side, sign = ("above", 1) if test["lower"] else ("below", -1)
    ratio = test.get(f"ratio_{side}") if test["ratio"] is None else test["ratio"]
    return ratio is not None and sign * ratio >= sign


def sentence(test: dict[str, Any]) -> str:
    """Returns one line: recipes, effect size and evidence. The better recipe comes first."""
    a, b, said = test["a"], test["b"], test["verdict"]
    where = {"A": "steps to the target", "B": "accuracy at the budget", "ladder": "budget ladder"}
    if said.startswith("not comparable: other batch"):
        return f"{a} and {b}: {said}"
    if said.startswith("not "):
        return f"{a} and {b}, {where[test['measure']]}: {said}"
    evidence = f"p = {p_value(test['p_adjusted'], test['p_value'], test['smallest_p'])}"
    if said.startswith("no "):
        return f"{a} and {b}, {where[test['measure']]}: {said} ({_size(test)}{evidence})"
    better, worse = (a, b) if test["lower"] else (b, a)
    size = _size(test if test["lower"] else mirrored(test))
    words = "ends with higher final accuracy" if test["measure"] == "B" else "needs fewer steps"
    ladder = ", by its budget ladder" if test["measure"] == "ladder" else ""
    n = seeds(test if test["lower"] else test | {"n": test["n"][::-1]})
    return f"{better} {words} than {worse}{ladder} ({size}{n}, {evidence})"


def p_value(adjusted: float, p: float, smallest: float) -> str:
    """Returns the corrected p-value, and says so if no smaller one is possible."""
    least = ", the least that so few seeds can give" if p <= smallest * (1 + 1e-9) else ""
    return f"{adjusted:.2g}{least}"


def mirrored(test: dict[str, Any]) -> dict[str, Any]:
    """Returns the effect sizes of the comparison with a and b exchanged."""

    def inverse(x: float | None) -> float | None:
        return None if not x else 1 / x

    def negative(x: float | None) -> float | None:
        return None if x is None else -x

    turn = negative if test["measure"] == "B" else inverse
    ends = test["ci95"]
    interval = None if ends is None else [turn(ends[1]), turn(ends[0])]
    sizes = {"ratio": inverse(test["ratio"]), "difference": negative(test["difference"])}
    bounds = {"ratio_below": inverse(test.get("ratio_above"))}
    bounds["ratio_above"] = inverse(test.get("ratio_below"))
    return test | sizes | bounds | {"ci95": interval}


def _size(test: dict[str, Any]) -> str:
    interval = test["ci95"]
    if test["measure"] == "B":
        if test["difference"] is None:
            return "a median is that of diverged runs; "
        return f"{100 * test['difference']:+z.2f} points{_ends(interval, '+z.2f', 100)}; "
    for side in ("below", "above"):
        if test.get(f"ratio_{side}") is not None:
            return f"ratio of steps {side} {test[f'ratio_{side}']:.3f}; "
    if test["ratio"] is None:
        return "ratio of steps not known; "
    return f"ratio of steps {test['ratio']:.3f}{_ends(interval, '.3f', 1)}; "


def _ends(interval: list[float | None] | None, form: str, factor: float) -> str:
    """Returns the interval as text. An open end is not bounded by the runs."""
    if interval is None:
        return ""
    ends = ["open" if x is None else format(factor * x, form) for x in interval]
    return f", 95 % interval {ends[0]} to {ends[1]}"


def row_name(row: dict[str, Any]) -> str:
    return row["recipe"] + (f" [{row['variant']}]" if row["variant"] else "")


def claim_sentence(row: dict[str, Any]) -> str | None:
    """Returns whether the median over seeds reaches the target; None if unmeasured.

    At the target counts as reached: MLPerf's checker says "at least".
    """
    accuracy, reaches = row["final_accuracy"], row["claim"]["reaches_target"]
    if reaches is None:
        return None
    median = "diverged" if accuracy["median"] is None else f"{accuracy['median']:.5g}"
    words = "reaches" if reaches else "does not reach"
    text = f"{row_name(row)} {words} {row['target_accuracy']:.4g} in {row['total_steps']} steps"
    text += f": the median final accuracy of {accuracy['n_measured']} seeds is {median}"
    lo, hi = (-1.0 if end is None else end for end in accuracy["ci95"] or (1.0, 1.0))  # diverged
    inside = lo < row["target_accuracy"] <= hi
    return text + (", but its 95 % interval includes the target" if inside else "")
