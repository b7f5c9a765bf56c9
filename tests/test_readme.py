"""What README says, run."""

import pathlib
import re
import subprocess

import pytest
from absl import flags

import main
import optim
from configs import command_line, plan
from reporting import claims

ROOT = pathlib.Path(main.__file__).parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_table_of_claims_is_the_generated_one():
    assert claims.inserted(README) == README


def test_every_make_target_that_it_names_exists():
    targets = set(re.findall(r"`?make ([a-z-]+)", README)) - {"lists"}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("recipe", sorted(set(re.findall(r"`([a-z0-9]+:[a-z0-9_]+)`", README))))
def test_every_recipe_that_it_names_loads(recipe):
    plan.validate(command_line.load(recipe))


def test_the_recipe_of_ones_own_optimizer_loads_and_builds(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    code = "\n".join(line.removeprefix("   ") for line in code.splitlines())
    (tmp_path / "mine.py").write_text(code)
    argv = ["main.py", f"--config={tmp_path / 'mine.py'}:digits", "--config.optimizer.b1=0.8"]
    flag_values = flags.FlagValues()
    command_line.define_config_flag(flag_values, argv)
    config = command_line.parse(argv, flag_values)
    plan.validate(config)
    assert config.recipe == "mine:digits"
    optimizer = config.optimizer.to_dict()
    assert optimizer == {"name": "optax:adamw", "b1": 0.8}
    tx, schedule = optim.from_recipe(optimizer, config.schedule.to_dict(), config.total_steps)
    assert float(schedule(6)) == pytest.approx(0.01)
    assert tx.init({"w": 1.0}) is not None


def test_every_path_that_it_names_exists():
    for path in re.findall(r"`([a-z_]+/|[a-z_/]+\.py)`", README):
        if path not in ("configs/mine.py", "checkpoints/"):
            assert (ROOT / path).exists(), path


def test_make_lists_its_targets():
    out = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("setup", "demo", "test", "lint"):
        assert f"make {target}" in out.stdout
