"""Which part imports which, from the import statements of all modules."""

import ast

import pytest

from benchmarks import code_size

FILES = code_size.modules()


def targets(prefix):
    """Returns the modules of this project that modules below a prefix import."""
    names = [name for name in FILES if name == prefix or name.startswith(f"{prefix}.")]
    assert names
    return {target for name in names for target in code_size.imports(name, FILES)}


def test_no_two_parts_import_each_other():
    assert code_size.cycles(FILES) == []


@pytest.mark.parametrize(
    ("part", "refused"),
    [
        ("run", {"reporting", "sweeps", "train", "main"}),
        ("reporting", {"pod", "pod_plan", "benchmarks", "train"}),
        ("pod", {"reporting", "pod_plan"}),
        ("optim", {"configs", "run", "errors"}),
        ("models", {"configs", "run", "errors"}),
        ("step", {"configs", "run", "errors"}),
        ("configs", {"train", "run", "sweeps"}),
    ],
)
def test_no_import_points_back_up(part, refused):
    assert not {target.partition(".")[0] for target in targets(part)} & refused


def test_nothing_imports_main():
    for name in FILES:
        if not name.startswith("tests."):
            assert "main" not in code_size.imports(name, FILES), name


@pytest.mark.parametrize("part", ["optim", "models", "step"])
def test_the_numerical_parts_import_no_flags_and_no_tensorflow(part):
    refused = {"absl", "ml_collections", "clu", "tensorflow", "orbax", "logging"}
    for name, file in FILES.items():
        if name == part or name.startswith(f"{part}."):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
                assert not {n.partition(".")[0] for n in names} & refused, name


def test_a_cycle_is_found(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    import b\n")
    (tmp_path / "b.py").write_text("from a import f\n")
    files = {"a": tmp_path / "a.py", "b": tmp_path / "b.py"}
    assert code_size.cycles(files) == ["a <-> b"]
    assert code_size.reachable(("a",), files) == ["a", "b"]
