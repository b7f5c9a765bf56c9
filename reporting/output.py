"""Output files of a report: Markdown tables, and writing all files or none."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from errors import UserError


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table. In cells, bars become semicolons, line ends blanks."""
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(' '.join(c.replace('|', ';').split()) for c in row)} |" for row in rows),
    ]


def write(texts: Mapping[Path, str]) -> None:
    """Writes every text as UTF-8 to a temporary file, then renames them all.

    Raises:
      UserError: a text cannot be encoded (half a surrogate pair). No file has changed.
      OSError: a folder is missing, read-only or full. No file has changed.
    """
    try:
        contents = {path: text.encode("utf-8") for path, text in texts.items()}
    except UnicodeEncodeError as error:
        raise UserError(f"a name or a text is not Unicode ({error}); correct it") from error
    partial_files = {path: path.parent / f".{path.name}.{os.getpid()}" for path in contents}
    try:
        for path, content in contents.items():
            partial_files[path].write_bytes(content)
        for path in contents:
            partial_files[path].replace(path)
    finally:
        for partial in partial_files.values():
            with contextlib.suppress(OSError):
                partial.unlink()
