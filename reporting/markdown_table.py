"""A table in Markdown, for the pages that are generated."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns its lines; a cell's vertical bars, which would end it, become semicolons."""
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(cell.replace('|', ';') for cell in row)} |" for row in rows),
    ]
