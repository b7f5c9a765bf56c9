"""OUT/manifest.jsonl: a line whenever a run starts or ends; the last line of a run counts."""

import datetime
import json
import pathlib
from collections.abc import Iterable

from reporting import manifest
from sweeps.runs import Run


class Manifest:
    """Appends to the file; `reporting.manifest` reads it."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def note_waiting(self, runs: Iterable[Run]) -> None:
        """A line for each run that has none yet, so that anybody knows what is still to come."""
        known = manifest.read(self.path)
        for run in runs:
            if str(run.folder.relative_to(self.path.parent)) not in known:
                self.write(run, "waiting", attempt=0)

    def write(self, run: Run, status: str, attempt: int) -> None:
        line = {
            "folder": str(run.folder.relative_to(self.path.parent)),
            "recipe": run.recipe,
            "seed": run.seed,
            "status": status,
            "attempt": attempt,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        with self.path.open("a") as f:
            f.write(json.dumps(line) + "\n")
