"""The TPU compiler on the proxies' real steps (make test-tpu)."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import pod_plan
from models.resnet import ResNet
from pod import topologies

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.skipif(
        not importlib.util.find_spec("libtpu"), reason="needs libtpu: make setup EXTRA=tpu"
    ),
]
SMALL = ["--config.global_batch_size=1024", "--config.model.bn_span=128"]


def plan(optimizer, topology="v3:2x2", overrides=()):
    config = f"configs/{optimizer}.py:smoke"
    return pod_plan.compile_steps(config, [*SMALL, *overrides], topologies.parse(topology))


@pytest.fixture(scope="module")
def nesterov():
    return plan("nesterov")


@pytest.fixture(scope="module")
def shampoo():
    return plan("shampoo")


def test_the_proxys_steps_compile_for_eight_cores(nesterov):
    assert (nesterov["n_devices"], nesterov["device_batch_size"]) == (8, 128)
    for step in ("train_step", "eval_step"):
        assert nesterov[step]["fits"]
        assert 0 < nesterov[step]["needed_mib"] < 16 * 1024
        assert nesterov[step]["loops_counted_once"] == 0
    parts = nesterov["train_step"]["compute_seconds_by_part"]
    assert parts["backward"] > parts["forward"] > 0


def test_the_gradients_are_summed_once_in_float32(nesterov):
    """The sum has all gradients and running statistics, loss and accuracy.

    The last bias of a block and the bias of its projection have equal gradients (32 and 64
    channels), which are summed only once.
    """
    moved = nesterov["train_step"]["collectives"]["all-reduce"]["bytes"]
    model = ResNet((1, 1), 8, 10, 3, 1, stem_pool=False)
    sizes = jax.eval_shape(
        lambda key: model.init(key, jnp.zeros((1, 8, 8, 1)), train=False), jax.random.key(0)
    )
    n_numbers = sum(leaf.size for leaf in jax.tree.leaves(sizes)) - (32 + 64) + 2
    assert moved == 4 * n_numbers


def test_shampoo_adds_roots_and_a_gather(nesterov, shampoo):
    added = {"statistics", "roots", "preconditioning"}
    assert added <= set(shampoo["train_step"]["compute_seconds_by_part"])
    assert not added & set(nesterov["train_step"]["compute_seconds_by_part"])
    assert shampoo["roots_per_device"] > 0 == nesterov["roots_per_device"]
    assert shampoo["train_step"]["compute_seconds"] > nesterov["train_step"]["compute_seconds"]


@pytest.mark.slow
def test_a_batch_that_does_not_fit_shows_by_how_much_and_which_does():
    wide = [
        "--config.dataset.image_size=8",
        "--config.model.width=256",
        "--config.global_batch_size=524288",
        "--config.model.bn_span=65536",
    ]
    result = pod_plan.make_plan("configs/nesterov.py:smoke", wide, topologies.parse("v3:2x2"))
    assert not result["train_step"]["fits"]
    assert result["train_step"]["exceeded_mib"] > 0
    assert 8 <= result["largest_global_batch_size"] < 524288


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology",
    ["v2:2x2", "v4:2x2x1", "v5e:2x2", "v6e:2x2"],
)
def test_the_same_command_plans_other_generations(topology):
    result = plan("nesterov", topology)
    assert result["n_devices"] == topologies.parse(topology).n_devices
    assert result["train_step"]["fits"]
    assert result["train_step"]["compute_seconds"] > 0


def test_a_topology_that_does_not_exist_is_a_user_error():
    with pytest.raises(ValueError, match="topology=v3:3x5"):
        plan("nesterov", "v3:3x5")
