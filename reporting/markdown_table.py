"""A table in Markdown, for the pages that are generated."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns its lines; what would end a cell, bars and line ends, becomes semicolons, blanks."""
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(' '.join(c.replace('|', ';').split()) for c in row)} |" for row in rows),
    ]
