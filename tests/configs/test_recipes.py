"""Recipes have the published numbers, which are copied here from their sources."""

import pytest

from configs import command_line, plan

# {recipe: {field: value}}. Sources: V07 train.py (LARS), the Shampoo README, V10 train.py and
# run_and_time.sh. The fields of nesterov:nado are from memory and must be marked `unverified`.
PUBLISHED = {
    "lars:mlperf_v07": {
        "global_batch_size": 32768,
        "total_steps": 2512,
        "eval_every_steps": 157,
        "target_accuracy": 0.759,
        "label_smoothing": 0.1,
        "dataset.name": "imagenet2012",
        "dataset.image_size": 224,
        "dataset.crop_area_min": 0.08,
        "model.stage_sizes": (3, 4, 6, 3),
        "model.width": 64,
        "model.bn_span": 128,
        "model.bn_decay": 0.9,
        "model.bn_epsilon": 1e-5,
        "model.compute_dtype": "bfloat16",
        "optimizer.momentum": 0.929,
        "optimizer.weight_decay": 1e-4,
        "optimizer.trust_coefficient": 0.001,
        "optimizer.epsilon": 0.0,
        "schedule.peak_learning_rate": 29.0,
        "schedule.warmup_steps": 706.5,
        "schedule.warmup_power": 1.0,
        "schedule.end_learning_rate": 1e-4,
        "schedule.decay_power": 2.0,
    },
    "nesterov:nado": {
        "global_batch_size": 32768,
        "total_steps": 2512,
        "label_smoothing": 0.15,
        "model.bn_decay": 0.94,
        "optimizer.momentum": 0.97603,
        "optimizer.weight_decay": 5.8e-5,
        "schedule.peak_learning_rate": 7.05,
        "schedule.warmup_steps": 638,
        "schedule.warmup_power": 2,
        "schedule.end_learning_rate": 6e-6,
        "schedule.decay_power": 2,
        "schedule.decay_end_step": 2497,
    },
    "shampoo:readme": {
        "global_batch_size": 32768,
        "total_steps": 1729,
        "label_smoothing": 0.1,
        "dataset.crop_area_min": 0.08,
        "optimizer.beta1": 0.95,
        "optimizer.beta2": 0.85,
        "optimizer.diagonal_epsilon": 0.0,
        "optimizer.matrix_epsilon": 1.5e-5,
        "optimizer.relative_matrix_epsilon": True,
        "optimizer.weight_decay": 1e-4,
        "optimizer.start_preconditioning_step": 25,
        "optimizer.preconditioning_compute_steps": 1,
        "optimizer.statistics_compute_steps": 1,
        "optimizer.no_preconditioning_for_layers_with_dim_gt": 8192,
        "optimizer.block_size": 128,
        "optimizer.best_effort_shape_interpretation": True,
        "optimizer.graft_type": "SGD",
        "optimizer.nesterov": True,
        "optimizer.exponent_override": 4,
        "schedule.peak_learning_rate": 13.0,
        "schedule.warmup_steps": 196,
        "schedule.end_learning_rate": 0.0,
        "schedule.decay_power": 2,
    },
    "shampoo:mlperf_v1": {
        "global_batch_size": 32768,
        "total_steps": 1727,
        "label_smoothing": 0.2,
        "dataset.crop_area_min": 0.05,
        "model.bn_span": 256,
        "optimizer.beta1": 0.96,
        "optimizer.beta2": 0.75,
        "optimizer.matrix_epsilon": 1e-8,
        "optimizer.relative_matrix_epsilon": False,
        "optimizer.weight_decay": 6.248644874764753e-05,
        "optimizer.start_preconditioning_step": 5,
        "optimizer.exponent_override": 4,
        "schedule.peak_learning_rate": 16.22,
        "schedule.warmup_steps": 196.25,
        "schedule.end_learning_rate": 0.0,
    },
    "shampoo:mlperf_v1_64k": {
        "global_batch_size": 65536,
        "total_steps": 1185,
        "optimizer.beta1": 0.953,
        "optimizer.beta2": 0.666,
        "optimizer.matrix_epsilon": 1e-8,
        "optimizer.weight_decay": 2.25e-4,
        "optimizer.start_preconditioning_step": 5,
        "schedule.peak_learning_rate": 12.0,
        "schedule.warmup_steps": 39.5,
    },
}
OPTIMIZERS = ("lars", "nesterov", "shampoo", "sm3")
RECIPES = [
    *PUBLISHED,
    "sm3:untuned",
    *(f"{o}:{v}" for o in OPTIMIZERS for v in ("digits", "fashion", "smoke")),
]


def field(config, path):
    for part in path.split("."):
        config = config[part]
    return config


@pytest.mark.parametrize(
    ("recipe", "path", "value"),
    [(r, path, value) for r, values in PUBLISHED.items() for path, value in values.items()],
)
def test_published_number(recipe, path, value):
    assert field(command_line.load(recipe), path) == value


def test_every_optimizer_has_a_recipe_file():
    assert set(OPTIMIZERS) <= set(command_line.optimizers())  # your own recipes may be among them


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_is_valid_and_has_its_name(recipe):
    config = command_line.load(recipe)
    plan.validate(config)
    assert config.recipe == recipe
    assert config.optimizer.name == recipe.partition(":")[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_flagged_fields_exist(recipe):
    config = command_line.load(recipe)
    for path in (*config.unverified, *config.assumed):
        field(config, path)


def test_numbers_from_memory_are_marked_unverified():
    config = command_line.load("nesterov:nado")
    names = {f"schedule.{k}" for k in config.schedule} | {"optimizer.momentum", "label_smoothing"}
    names |= {"optimizer.weight_decay", "model.bn_decay", "model.bn_span"}
    assert names == set(config.unverified)


def test_fields_missing_from_the_readme_are_marked_assumed():
    assumed = command_line.load("shampoo:readme").assumed
    assert {"label_smoothing", "dataset.crop_area_min", "model.bn_span"} <= set(assumed)


def test_sm3s_unpublished_setting_is_marked_assumed():
    config = command_line.load("sm3:untuned")
    assert {"schedule.peak_learning_rate", "schedule.warmup_steps"} <= set(config.assumed)


@pytest.mark.parametrize(
    ("recipe", "overrides", "words"),
    [
        ("lars:digitz", [], ["variant=digitz", "mlperf_v07", "digits", "fashion", "smoke"]),
        ("adam:digits", [], ["adam", "lars, ", "nesterov, ", "shampoo, ", "sm3"]),
        ("lars", ["--config.optimizer.momentun=1"], ["optimizer.momentun", "momentum", "epsilon"]),
        (
            "lars",
            ["--config.learning_rate=1"],
            ["--config.learning_rate", "did you mean", "schedule.peak_learning_rate"],
        ),
        ("lars", ["--config.optim.momentum=1"], ["did you mean optimizer.momentum?"]),
        ("lars", ["--config.seed.x=1"], ["--config.seed.x: no such field"]),
        ("lars", ["--config.nope=1"], ["--config.nope", "total_steps", "seed"]),
        ("lars", ["--config.seed=x"], ["--config.seed=x"]),
        ("lars", ["--config.seed=1.5"], ["--config.seed=1.5"]),
        ("lars", ["--config.total_steps=1e3"], ["--config.total_steps=1e3"]),
        ("lars", ["--config.optimizer=3"], ["--config.optimizer=3"]),
        ("lars", ["--wrkdir=x"], ["wrkdir"]),
        ("lars", ["stray"], ["argument stray"]),
    ],
)
def test_mistakes_raise_one_line_errors_with_the_valid_names(recipe, overrides, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        command_line.load(recipe, overrides)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_override_reaches_nested_fields_with_their_types():
    config = command_line.load(
        "lars:digits",
        ["--config.optimizer.momentum=0.5", "--config.seed=7", "--config.model.stage_sizes=(1,1)"],
    )
    assert config.optimizer.momentum == 0.5
    assert config.seed == 7
    assert config.model.stage_sizes == (1, 1)
