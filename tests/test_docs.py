"""What README and docs/ say, checked: commands, flags, paths, names, links, generated tables."""

import functools
import importlib
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import types

import numpy as np
import pytest
import yaml
from absl import flags

import main
import optim
import reproduce
import sweep
from configs import command_line, optimizers, plan
from optim import monitoring
from pod import topologies
from reporting import readme

ROOT = pathlib.Path(main.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in PAGES}
README = TEXTS["README.md"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
STARTS = ("make", "python", "bash")
# Programs of others, and scripts that a command before has written.
UNCHECKED = ("gcloud", "kubectl", "sbatch", "bash go", "git")
SECTIONS = ("dataset", "model", "optimizer", "schedule")
MADE_BY_THE_READER = ("configs/mine.py", "configs/unit.py", "checkpoints/")


FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def blocks(text, language):
    """The fenced blocks of a language, dedented."""
    return [textwrap.dedent(block) for name, block in FENCED.findall(text) if name == language]


def lines(text):
    """Every line of the fenced blocks without a language, continuations joined."""
    return [line for b in blocks(text, "") for line in b.replace("\\\n", " ").splitlines()]


def spans(text):
    """The inline code of a page."""
    return {" ".join(s.split()) for s in re.findall(r"`([^`]+)`", FENCED.sub("", text))}


def commands(text):
    """Commands as a reader would type them, in blocks and in the running text."""
    found = [*lines(text), *sorted(spans(text))]
    found = [c.strip().removeprefix(".venv/bin/") for c in found]
    return [c for c in found if c.split()[:1] and c.split()[0] in STARTS and " " in c]


COMMANDS = [(page, command) for page, text in TEXTS.items() for command in commands(text)]
SPANS = {page: spans(text) for page, text in TEXTS.items()}
ALL_SPANS = sorted(set().union(*SPANS.values()))


def is_file(path):
    return path in MADE_BY_THE_READER or (ROOT / path).exists()


def source(program):
    """The file that `python PROGRAM` runs."""
    if program[0] != "-m":
        return ROOT / program[0]
    path = ROOT / program[1].replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def declared_flags(program):
    """The flags that the program's own file gives to argparse: read, which is cheap."""
    text = source(program).read_text("utf-8")
    return set(re.findall(r"""add_argument\(\s*"--([a-z_]+)\"""", text))


@functools.cache
def known_flags(program):
    """The flags in the program's --help."""
    command = [sys.executable, *program, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"--(?:\[no\])?([a-z_]+)", done.stdout))


def check_make(arguments):
    target, *given = [a for a in arguments if "=" not in a] + [a for a in arguments if "=" in a]
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    for variable in given:
        name = variable.partition("=")[0]
        assert re.search(rf"\$\({name}\)|^{name} \?=|ifdef {name}$", MAKEFILE, re.MULTILINE), name
    subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, check=True)


def check_pytest(arguments, config):
    for argument in arguments:
        if argument.startswith("--"):
            config.getoption(argument.partition("=")[0])  # ValueError if there is no such option
        elif "/" in argument:
            assert is_file(argument), argument


def check_config(arguments):
    """The recipe loads with the command's overrides, and makes sense."""
    recipe = next(a for a in arguments if a.startswith("--config=")).partition("=")[2]
    file, _, variant = recipe.removeprefix("configs/").partition(":")
    overrides = [a for a in arguments if a.startswith("--config.")]
    plan.validate(command_line.load(f"{file.removesuffix('.py')}:{variant}", overrides))


def check_python(arguments, config):
    if arguments[0] == "-m":
        program, rest = arguments[:2], arguments[2:]
        if program[1] == "pytest":
            return check_pytest(rest, config)
    else:
        program, rest = arguments[:1], arguments[1:]
    assert source(program).exists(), program
    rest = rest[: rest.index(">")] if ">" in rest else rest
    if "--" in rest:  # what follows is for reproduce.py, which a launch script starts
        check_python(["reproduce.py", *rest[rest.index("--") + 1 :]], config)
        rest = rest[: rest.index("--")]
        program = [*program, rest.pop(0)]
    given = {a.partition("=")[0].removeprefix("--") for a in rest if a.startswith("--")}
    plain = {name for name in given if not name.startswith("config.")}
    if len(program) > 2 or not plain <= declared_flags(tuple(program)):  # of a subcommand
        assert plain <= known_flags(tuple(program)), plain
    if "config" in plain:
        check_config(rest)
    if program == ["sweep.py"] and "status" not in given:
        here = [a for a in rest if not a.startswith("--tuned=")]  # an earlier command's file
        assert sweep.main([*here, "--dry_run"]) == 0
    if program == ["reproduce.py"]:
        assert reproduce.main([*rest, "--dry_run"]) == reproduce.DONE
    return None


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_every_command_is_understood_by_its_program(page, command, pytestconfig):
    # The reader's own recipe is not here yet: SM3's takes its place.
    command = command.replace("configs/mine.py", "configs/sm3.py")
    command = command.replace("mine:", "sm3:").replace("unit:", "sm3:")
    start, *arguments = shlex.split(command, comments=True)
    if command.startswith(UNCHECKED):
        return
    if start == "make":
        check_make(arguments)
    elif start == "python":
        check_python(arguments, pytestconfig)
    else:
        assert is_file(arguments[0]), arguments


@pytest.mark.parametrize("page", TEXTS)
def test_blocks_of_commands_hold_nothing_else(page):
    for line in filter(str.strip, lines(TEXTS[page])):
        first = line.strip().removeprefix(".venv/bin/")
        assert first.startswith((*STARTS, *UNCHECKED)), line


@pytest.mark.parametrize("page", TEXTS)
def test_every_path_that_it_names_exists(page):
    path = re.compile(r"([a-z][\w.-]+/)+|([a-z][\w.-]+/)*[\w-]+\.(py|md|cff|toml)")
    for span in filter(path.fullmatch, SPANS[page]):
        assert is_file(span), span


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if not target.startswith("https://"):
            assert ((ROOT / page).parent / target).exists(), target


def test_the_readme_leads_to_every_document():
    for page in PAGES[1:]:
        assert f"]({page.relative_to(ROOT)})" in README, page


@pytest.mark.parametrize("name", [s for s in ALL_SPANS if re.fullmatch(r"[a-z0-9.]+:\w+", s)])
def test_every_recipe_and_factory_that_is_named_is_there(name):
    if name.partition(":")[0] in command_line.optimizers():
        plan.validate(command_line.load(name))
    elif name.partition(":")[0] in topologies.GENERATIONS:
        topologies.parse(name)
    elif name != "package.module:factory":
        optimizers.check(name)


def test_every_field_test_and_function_that_is_named_is_there():
    fields = {f"{s}.{f}" for c in readme.recipes() for s in SECTIONS for f in c[s]}
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for span in ALL_SPANS:
        if re.fullmatch(r"--config\.[a-z_.]+(=\S*)?", span):
            command_line.load("lars:digits", [span if "=" in span else f"{span}=1"])
        if re.fullmatch(rf"({'|'.join(SECTIONS)})\.[a-z_0-9]+", span):
            assert span in fields, span
        if re.fullmatch(r"test_\w+", span):
            assert f"def {span}(" in tests, span
        if re.fullmatch(r"(optim|largebatch|sharding|step)\.(?!py$)[\w.]+", span):
            names = re.sub(r"^(optim|largebatch)\.", "", span).split(".")
            here = importlib.import_module("step") if names[0] == "step" else optim
            for name in names[names[0] == "step" :]:
                here = getattr(here, name)


def test_the_counters_are_those_of_the_optimizer():
    named = {s for s in SPANS["docs/shampoo.md"] if s.startswith("shampoo_")}
    assert named == {f"shampoo_{name}" for name in monitoring.COUNTERS}


def test_the_generated_tables_are_the_present_ones():
    for page in readme.TABLES:
        assert readme.update(page) == TEXTS[page], "update it: python -m reporting.readme"


def test_the_table_of_recipes_shows_every_flagged_field():
    shown = readme.values()
    for config in readme.recipes():
        assert f"`{config.recipe}`" in shown
        for field in (*config.unverified, *config.assumed):
            assert f"| `{field}` |" in shown, field


def test_the_recipe_of_ones_own_optimizer_loads_and_builds(tmp_path):
    (tmp_path / "mine.py").write_text(blocks(README, "python")[0])
    argv = ["main.py", f"--config={tmp_path / 'mine.py'}:digits", "--config.optimizer.b1=0.8"]
    flag_values = flags.FlagValues()
    command_line.define_config_flag(flag_values, argv)
    config = command_line.parse(argv, flag_values)
    plan.validate(config)
    assert config.recipe == "mine:digits"
    optimizer = config.optimizer.to_dict()
    assert optimizer == {"name": "optax:adamw", "b1": 0.8}
    tx, schedule = optimizers.from_recipe(config)
    assert float(schedule(6)) == pytest.approx(0.01)
    assert tx.init({"w": 1.0}) is not None


def test_the_optimizer_of_the_how_to_takes_steps_of_unit_length(monkeypatch):
    mine = types.ModuleType("configs.unit")
    monkeypatch.setitem(sys.modules, "configs.unit", mine)
    exec(blocks(TEXTS["docs/optimizers.md"], "python")[0], vars(mine))
    config = mine.get_config()
    plan.validate(config)
    optimizers.check(config.optimizer.name)
    assert set(mine.SEARCH) <= {f"{s}.{f}" for s in SECTIONS for f in config[s]}
    params = {"w": np.float32([3.0, 4.0]), "zero": np.zeros(2, np.float32)}
    tx = mine.unit_sgd(0.5, momentum=0.0)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.3, -0.4], rtol=1e-6)
    assert not np.any(updates["zero"])


def test_the_citation_is_one():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


def test_make_lists_its_targets():
    out = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("setup", "demo", "test", "lint"):
        assert f"make {target}" in out.stdout
