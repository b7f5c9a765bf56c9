"""Plans match the submissions' numbers, and invalid values get one-line errors."""

import pytest

from configs import command_line, plan

IMAGENET = {"n_train_examples": 1_281_167, "n_eval_examples": 50_000}


def pod_plan(recipe, n_devices=256, n_hosts=32, **sizes):
    return plan.make_plan(
        command_line.load(recipe), **{**IMAGENET, **sizes}, n_devices=n_devices, n_hosts=n_hosts
    )


def test_lars_on_the_pod():
    p = pod_plan("lars:mlperf_v07")
    assert p.device_batch_size == 128
    assert p.host_batch_size == 1024
    assert p.decay_steps == 1806.5  # V07: 2512 - 706.5 + 1
    assert p.eval_steps == tuple(range(157, 2513, 157))  # 16 loops
    assert p.device_eval_batch_size == 196  # V07 on 256 cores: 50,176 slots in one step
    assert p.steps_per_data_epoch == pytest.approx(39.098, abs=5e-4)


def test_readme_budget_ends_with_an_evaluation_off_the_grid():
    p = pod_plan("shampoo:readme")
    assert p.eval_steps[-2:] == (1727, 1729)
    assert p.decay_steps == 1534


def test_v1_decay_steps_are_the_logged_ones():
    assert pod_plan("shampoo:mlperf_v1", n_devices=128, n_hosts=16).decay_steps == 1531.75


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["--config.target_accuracy=75.9"], ["target_accuracy=75.9", "fraction", "0.759"]),
        (["--config.schedule.warmup_steps=61.0"], ["schedule.warmup_steps=61.0", "total_steps=60"]),
        (["--config.schedule.peak_learning_rate=-1.0"], ["peak_learning_rate=-1.0", "negative"]),
        (["--config.schedule.peak_learning_rate=0.0"], ["peak_learning_rate=0.0", "positive"]),
        (["--config.schedule.end_learning_rate=nan"], ["end_learning_rate=nan", "finite"]),
        (["--config.schedule.decay_end_step=99.0"], ["decay_end_step=99.0", "total_steps=60"]),
        (["--config.seed=-1"], ["seed=-1"]),
        (["--config.seed=2147483648"], ["seed=2147483648"]),
        (["--config.total_steps=0"], ["total_steps=0"]),
        (["--config.eval_every_steps=0"], ["eval_every_steps=0"]),
        (["--config.global_batch_size=-8"], ["global_batch_size=-8"]),
        (["--config.label_smoothing=1.0"], ["label_smoothing=1.0"]),
        (["--config.model.compute_dtype=float16"], ["compute_dtype=float16", "bfloat16"]),
        (["--config.model.bn_span=0"], ["bn_span=0"]),
        (["--config.model.bn_running_variance=both"], ["bn_running_variance=both", "pooled"]),
        (["--config.model.stem_space_to_depth=True"], ["space_to_depth=True", "kernel_size=7"]),
        (["--config.gradient_accumulation_steps=0"], ["gradient_accumulation_steps=0"]),
        (["--config.model.stage_sizes=()"], ["stage_sizes"]),
        (["--config.optimizer.momentum=1.5"], ["optimizer.momentum=1.5"]),
        (["--config.optimizer.weight_decay=-1.0"], ["weight_decay=-1.0"]),
    ],
)
def test_errors_name_field_value_and_rule(overrides, words):
    config = command_line.load("lars:digits", overrides)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        plan.validate(config)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("n_devices", "n_hosts", "words"),
    [
        (3, 1, ["global_batch_size=32768", "3 devices", "32766"]),
        (65536, 1, ["global_batch_size=32768", "65536"]),
        (8192, 1024, None),  # 4 examples per device: a span of 128 joins 32 devices
        (96 * 256, 1, ["global_batch_size=32768"]),
    ],
)
def test_batch_must_divide_over_the_devices(n_devices, n_hosts, words):
    if words is None:
        assert pod_plan("lars:mlperf_v07", n_devices, n_hosts).device_batch_size == 4
        return
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        pod_plan("lars:mlperf_v07", n_devices, n_hosts)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("span", [100, 192])
def test_bn_span_must_fit_the_device_batch(span):
    config = command_line.load("lars:mlperf_v07", [f"--config.model.bn_span={span}"])
    with pytest.raises(ValueError, match=f"bn_span={span}"):
        plan.make_plan(config, **IMAGENET, n_devices=256, n_hosts=32)


def test_bn_groups_must_divide_the_devices():
    config = command_line.load("lars:mlperf_v07", ["--config.model.bn_span=8192"])
    config.global_batch_size = 20 * 1024
    with pytest.raises(ValueError, match="bn_span=8192"):
        plan.make_plan(config, **IMAGENET, n_devices=20, n_hosts=5)


def accumulating(n_devices, **fields):
    return plan.make_plan(
        command_line.load(
            "lars:mlperf_v07", [f"--config.{name}={value}" for name, value in fields.items()]
        ),
        **IMAGENET,
        n_devices=n_devices,
        n_hosts=1,
    )


def test_accumulation_cuts_the_device_batch():
    p = accumulating(8, gradient_accumulation_steps=32)
    assert (p.device_batch_size, p.micro_batch_size) == (4096, 128)
    assert accumulating(8, gradient_accumulation_steps=16).micro_batch_size == 256  # two spans


@pytest.mark.parametrize(
    ("n_devices", "k", "words"),
    [
        (8, 33, ["gradient_accumulation_steps=33", "4096", "divisor is 32"]),
        (1024, 33, ["gradient_accumulation_steps=33", "device batch of 32", "divisor is 32"]),
        (8, 10**15, ["gradient_accumulation_steps=10", "divisor is 4096"]),  # without a search
        (8, 64, ["bn_span=128", "micro-batch of 64", "gradient_accumulation_steps"]),
    ],
)
def test_uneven_accumulation_is_refused(n_devices, k, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        accumulating(n_devices, gradient_accumulation_steps=k)
    for word in words:
        assert word in str(caught.value)
