"""OUT/manifest.jsonl: a line whenever a run starts or ends; the last line of a run counts."""

import datetime
import json
import pathlib

from sweeps.runs import Run


class Manifest:
    """Appends to the file; `reporting.manifest` reads it."""

    def __init__(self, path: pathlib.Path):
        self.path = path

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
