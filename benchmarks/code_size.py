"""Prints the size of the code: python -m benchmarks.code_size

Per directory: files and lines of Python without the tests. Then the modules that one training run
can import: those that import statements reach from main.py and configs/shampoo.py, also inside
functions. Last, the import cycles between directories and modules of the root.
"""

import ast
import collections
import pathlib
import sys
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = ("main", "configs.shampoo")
SKIPPED = {"tests", "runs", "build"}


def modules() -> dict[str, pathlib.Path]:
    """Returns {dotted name: file} of all modules."""
    result = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if not any(part.startswith(".") for part in parts):
            result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return result


def imports(name: str, files: Mapping[str, pathlib.Path]) -> Iterator[str]:
    """Yields the modules of this project that a module imports, parent packages included."""
    file = files[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            parents = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            targets = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for target in targets:
            parts = target.split(".")
            for i in range(1, len(parts) + 1):
                if ".".join(parts[:i]) in files:
                    yield ".".join(parts[:i])


def reachable(names: tuple[str, ...], files: Mapping[str, pathlib.Path]) -> list[str]:
    """Returns all modules that some modules can import, themselves included."""
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imports(name, files)
    return sorted(reached)


def cycles(files: Mapping[str, pathlib.Path]) -> list[str]:
    """Returns groups of directories and root modules that import each other."""
    graph: dict[str, set[str]] = collections.defaultdict(set)
    for name in files:
        top = name.partition(".")[0]
        graph[top] |= {target.partition(".")[0] for target in imports(name, files)} - {top}

    def reach(top: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(graph[top])
        while waiting:
            if (target := waiting.pop()) not in seen:
                seen.add(target)
                waiting += graph[target]
        return seen

    reached = {top: reach(top) for top in list(graph)}
    groups = {
        tuple(sorted(other for other in reached[top] if top in reached[other]))
        for top in reached
        if top in reached[top]
    }
    return sorted(" <-> ".join(group) for group in groups)


def main() -> int:
    """Prints the tables; the exit status is 1 if there is a cycle."""
    files = modules()
    lines = {name: len(file.read_text("utf-8").splitlines()) for name, file in files.items()}
    directories: dict[str, list[int]] = collections.defaultdict(list)
    for name, file in files.items():
        parts = file.relative_to(ROOT).parts
        if parts[0] not in SKIPPED:
            directories[parts[0] if len(parts) > 1 else "."].append(lines[name])
    for directory, counts in sorted(directories.items()):
        print(f"{directory:<16} {len(counts):>4} files {sum(counts):>7,} lines")
    total = [n for counts in directories.values() for n in counts]
    print(f"{'without tests':<16} {len(total):>4} files {sum(total):>7,} lines")
    run = reachable(RUN, files)
    print(f"{'one run':<16} {len(run):>4} files {sum(lines[name] for name in run):>7,} lines")
    found = cycles(files)
    print("no import cycles" if not found else "import cycles: " + "; ".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
