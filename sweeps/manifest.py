"""OUT/manifest.jsonl: a line whenever a run starts or ends; the last line of a run counts."""

import dataclasses
import datetime
import json
from collections.abc import Iterable

from etils import epath

from run import files
from sweeps.runs import Run, folder_name

NAME = "manifest.jsonl"


@dataclasses.dataclass(frozen=True)
class Entry:
    """The last line of a run.

    Attributes:
      status: waiting, submitted, started, or how the run ended.
      time: ISO 8601, UTC.
    """

    recipe: str
    status: str
    time: str
    attempt: int


class Manifest:
    """Appends to the file. A bucket has no appending, so there the file is written anew."""

    def __init__(self, out: epath.Path):
        self.path = out / NAME
        self.is_bucket = "://" in str(out)
        self.text = self.path.read_text() if self.is_bucket and self.path.exists() else ""

    def note_waiting(self, runs: Iterable[Run]) -> None:
        """Writes a line for each run that has none, so that readers know what is planned."""
        entries = self.entries()
        for run in runs:
            if run.folder not in entries:
                self.write(run, "waiting", attempt=0)

    def write(self, run: Run, status: str, attempt: int) -> None:
        """Appends a line."""
        line = {
            "folder": str(run.folder.relative_to(self.path.parent)),
            "recipe": run.recipe,
            "seed": run.seed,
            "status": status,
            "attempt": attempt,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        text = json.dumps(line) + "\n"
        if self.is_bucket:
            self.text += text
            files.write_text(self.path, self.text)
        else:
            with self.path.open("a") as f:
                f.write(text)

    def entries(self) -> dict[epath.Path, Entry]:
        """Returns {folder of a run: its last line}."""
        return {self.path.parent / folder: entry for folder, entry in read(self.path).items()}


def read(path: epath.Path) -> dict[str, Entry]:
    """Returns {folder below the manifest's: last line}; unreadable lines are skipped."""
    entries: dict[str, Entry] = {}
    try:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            entry = json.loads(line)
            recipe = str(entry["recipe"])
            seed_folder = f"{folder_name(recipe)}/seed_{int(entry['seed']):04d}"
            folder = str(entry.get("folder") or seed_folder)
            attempt = int(entry.get("attempt", 1))
            entries[folder] = Entry(recipe, str(entry["status"]), str(entry.get("time")), attempt)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return entries
