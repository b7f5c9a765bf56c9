"""How a run's record names the code."""

import subprocess

import pytest

from run import identity


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "__file__", str(tmp_path / "run" / "identity.py"))
    (tmp_path / "step.py").write_text("rate = 1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "step.py")
    git(tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "x")
    return tmp_path


def git(folder, *arguments):
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    return done.stdout.decode().strip()


def named():
    return identity.git_commit.__wrapped__()


def test_every_state_of_the_code_has_a_name_of_its_own(repository):
    commit = git(repository, "rev-parse", "HEAD")
    names = [named()]
    (repository / "notes.md").write_text("no code")
    assert named() == commit == names[0]
    for file, text in (("mine.py", "a"), ("mine.py", "b"), ("step.py", "rate = 2\n")):
        (repository / file).write_text(text)
        names.append(named())
        assert names[-1].startswith(f"{commit}-dirty-")
    assert len(set(names)) == 4
    (repository / "mine.py").unlink()
    (repository / "step.py").write_text("rate = 1\n")
    assert named() == commit


def test_without_git_the_code_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "__file__", str(tmp_path / "run" / "identity.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert named() == "unknown"
