"""Files that a report writes: all of them or none, and each whole."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from errors import UserError


def write(texts: Mapping[Path, str]) -> None:
    """Writes every text as UTF-8 beside its file, then renames them all.

    Raises:
      UserError: a text that is no UTF-8 (as half a surrogate pair); nothing was written.
      OSError: a folder is missing, read-only or full; the files are the old ones.
    """
    try:
        contents = {path: text.encode("utf-8") for path, text in texts.items()}
    except UnicodeEncodeError as error:
        raise UserError(f"a name or a text is not Unicode ({error}); correct it") from error
    beside = {path: path.parent / f".{path.name}.{os.getpid()}" for path in contents}
    try:
        for path, content in contents.items():
            beside[path].write_bytes(content)
        for path in contents:
            beside[path].replace(path)
    finally:
        for partial in beside.values():
            with contextlib.suppress(OSError):
                partial.unlink()
