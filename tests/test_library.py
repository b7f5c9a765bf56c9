"""The optimizers installed as a package: its contents, its requirements, its page of examples."""

import ast
import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile

import jax
import numpy as np
import optax
import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "library.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
NAME, VERSION = PROJECT["project"]["name"], PROJECT["project"]["version"]
REQUIRED = {"jax", "numpy", "optax"}
SOURCES = sorted((ROOT / "optim").rglob("*.py"))

# optax imports absl; the package itself must not. All refused names are looked up after optax.
BEGIN = """
import sys
import jax, numpy, optax

REFUSED = ("absl", "clu", "flax", "ml_collections", "optim", "orbax", "tensorflow")


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise AssertionError(f"the package imports {name}")


assert "optim" not in sys.modules and "flax" not in sys.modules
sys.meta_path.insert(0, Refuse())
"""

TRAINING = """
import inspect

import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

import largebatch

assert largebatch.__file__.startswith(FOLDER), largebatch.__file__
mesh = jax.make_mesh((8,), ("data",))
r = numpy.random.default_rng(0)
params = {
    "first": {"kernel": r.normal(size=(12, 300)) / 4, "bias": numpy.zeros(300)},
    "last": {"kernel": r.normal(size=(300, 1)) / 17},  # several blocks of 128, for several devices
}
params = jax.tree.map(numpy.float32, params)
x = numpy.float32(r.normal(size=(64, 12)))
y = numpy.float32(x @ r.normal(size=(12, 1)))
MOMENTUM = {"momentum": 0.9}
NEEDED = {"lars": MOMENTUM | {"trust_coefficient": 0.05}, "nesterov": MOMENTUM}
RATES = {"sm3": 0.3}


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    return jnp.mean((hidden @ params["last"]["kernel"] - y) ** 2)


def train(tx, params, x, y):
    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(12):
        params, state = step(params, state)
    return params


def distance(a, b):
    return numpy.linalg.norm(a - b) / numpy.linalg.norm(a)


def is_factory(value):
    return callable(value) and "learning_rate" in inspect.signature(value).parameters


factories = {k: getattr(largebatch, k) for k in largebatch.__all__}
factories = {name: f for name, f in factories.items() if is_factory(f)}
assert set(factories) >= {"lars", "nesterov", "sm3", "distributed_shampoo"}, factories
replicated, batch = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
for name, factory in factories.items():
    tx = factory(learning_rate=RATES.get(name, 0.03), **NEEDED.get(name, {}))
    alone = train(tx, params, x, y)
    shared = train(tx, jax.device_put(params, replicated), *jax.device_put((x, y), batch))
    assert len(shared["first"]["kernel"].devices()) == 8
    before, after = loss(params, x, y), loss(alone, x, y)
    difference = max(jax.tree.leaves(jax.tree.map(distance, alone, shared)))
    print(name, before, after, difference)
    assert after < 0.5 * before, (name, before, after)
    assert difference < 1e-3, (name, difference)
"""


def imports(source):
    """Yields (line, number of dots, module) of every import, conditional ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, 0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_package_imports_only_itself_and_what_it_requires(path):
    depth = len(path.relative_to(ROOT / "optim").parts)
    for line, dots, module in imports(path.read_text("utf-8")):
        if dots:
            assert dots <= depth, f"line {line} imports from outside of the package"
        else:
            top = module.partition(".")[0]
            assert top in REQUIRED or top in sys.stdlib_module_names, f"line {line}: {module}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds the wheel from a copy, without a network."""
    folder = tmp_path_factory.mktemp("library")
    source = folder / "source"
    for name in ("pyproject.toml", "LICENSE", "docs/library.md"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "optim", source / "optim", ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--no-build-isolation", f"--wheel-dir={folder}", str(source)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed, program, folder):
    """Runs a program where only the package and the virtual environment can be imported."""
    script = folder / "program.py"
    begin = BEGIN + f"FOLDER, VERSION = {str(installed)!r}, {VERSION!r}\n"
    script.write_text(begin + program, "utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "JAX_PLATFORMS": "cpu",
        "NPROC": "16",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=1",
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_one_typed_package_with_the_present_code(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    information = f"{NAME}-{VERSION}.dist-info"
    assert {name.partition("/")[0] for name in held} == {NAME, information}
    present = {f"{NAME}/{p.relative_to(ROOT / 'optim')}": p.read_bytes() for p in SOURCES}
    assert {k: v for k, v in held.items() if k.endswith(".py")} == present
    assert f"{NAME}/py.typed" in held


def test_the_wheel_requires_jax_numpy_and_optax_only(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert {re.match(r"[\w.-]+", r)[0] for r in required} == REQUIRED
    assert set(metadata.get_all("Provides-Extra")) == {"dev", "harness", "slurm", "tpu"}


def test_the_lock_files_pin_every_requirement_and_name_no_index():
    """Hashes of the pinned versions, no address: they work with any package index."""
    extras = PROJECT["project"]["optional-dependencies"]
    everywhere = [*PROJECT["project"]["dependencies"], *extras["harness"]]
    for file, extra in (("", "dev"), ("-slurm", "slurm"), ("-tpu", "tpu")):
        text = (ROOT / f"requirements{file}.lock").read_text("utf-8")
        pinned = set(re.findall(r"^([a-z0-9-]+)(?:\[[\w,]+\])?==", text, re.MULTILINE))
        for requirement in [*everywhere, *extras[extra]]:
            name = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
            assert name in pinned, (file, requirement)
        assert "://" not in text
        assert "index" not in re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE)


def test_the_package_imports_without_the_harness_and_states_its_version(installed, tmp_path):
    run(installed, "import largebatch\nassert largebatch.__version__ == VERSION", tmp_path)


@pytest.mark.slow
def test_every_exported_optimizer_trains_on_a_mesh_as_on_one_device(installed, tmp_path):
    run(installed, TRAINING, tmp_path)


def examples(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_examples_of_the_page_make_the_same_step(installed, tmp_path):
    blocks = examples(PAGE)
    after = "\nif 'train_step' in globals(): steps.append(jax.device_get(new_params))\n"
    program = (
        "steps = []\n"
        + after.join([*blocks, ""])
        + textwrap.dedent(
            """
        steps = [step["kernel"] for step in steps]
        under_jit, under_shard_map, under_pmap, *_ = steps
        assert n_devices == 8
        stepped = {"kernel": under_jit, "bias": 0.0}
        assert loss(stepped, images, labels) < loss(params, images, labels)
        numpy.testing.assert_allclose(under_shard_map, under_jit, atol=1e-6)
        numpy.testing.assert_allclose(under_pmap, under_jit, atol=1e-6)
        assert bytes_per_device * 8 >= 2 * 4 * 5130  # two momenta for 5,130 parameters
        jax.tree.map(numpy.testing.assert_array_equal, stored, state)
        assert largest_residual
        assert all(0 <= x < 1e-2 for x in largest_residual.values()), largest_residual
        """
        )
    )
    run(installed, program, tmp_path)


def test_the_composition_of_the_how_to_has_the_norm_of_adam():
    namespace = {}
    exec(examples(ROOT / "docs" / "optimizers.md")[1], namespace)
    tx = namespace["shampoo_adam"](0.1, momentum=0.0)
    r = np.random.default_rng(0)
    params, grads = ({"w": np.float32(r.normal(size=(6, 5)))} for _ in range(2))
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    adam = optax.adam(0.1)
    wanted, _ = adam.update(grads, adam.init(params), params)
    norms = [float(np.linalg.norm(x["w"])) for x in (updates, wanted)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert np.vdot(updates["w"], wanted["w"]) < 0.99 * norms[0] * norms[1]
