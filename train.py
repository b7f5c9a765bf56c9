"""One run: from a config to its result, in one visible loop."""

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

import checkpoint
import evaluator
import hosts
import input_pipeline
import step as steps
import workdir as files
from configs import optimizers
from configs import plan as plans
from errors import Preempted, UserError
from input_pipeline.host import n_cores
from interruption import Signals
from journal import Journal, Record
from models.resnet import ResNet


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The content of run.json. Accuracies are fractions; None where there is no such value."""

    recipe: str
    optimizer: str
    dataset: str
    seed: int
    status: str  # done | diverged | aborted
    diverged: Mapping[str, Any] | None  # step, metric that was not finite, last_checkpoint before
    target_accuracy: float
    steps_to_target: int | None
    seconds_to_target: float | None
    final_accuracy: float | None
    best_accuracy: float | None
    total_steps: int
    global_batch_size: int
    n_eval_examples: int
    plan: Mapping[str, Any]
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    git: str
    device: Mapping[str, Any]
    unverified: Sequence[str]
    assumed: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Program:
    """What is built from a config and does not depend on its seed."""

    model: ResNet
    tx: Any
    schedule: Callable[[int], Any]
    train_step: Any  # as jax.pmap gives them: to call, or to lower
    eval_step: Any


def build(
    config: ConfigDict,
    spec: input_pipeline.DatasetSpec,
    devices: tuple[jax.Device, ...] | None = None,
) -> Program:
    """Builds model, optimizer and steps; runs that compute the same share what is compiled.

    So a worker of a sweep compiles once for all the seeds of a recipe, and for all the trials of an
    optimizer that differ in numbers which the step reads from its state (`optimizers.cache_key`).

    Args:
      devices: of the steps; None: all that there are. Others are for compiling ahead of time.
    """
    numbers = ("total_steps", "label_smoothing", "gradient_accumulation_steps")
    every = files.config_as_json(config)
    shared = {field: every[field] for field in ("model", "optimizer", "schedule", *numbers)}
    tx, schedule = optimizers.from_recipe(
        shared["optimizer"], shared["schedule"], config.total_steps
    )
    shared["optimizer"], shared["schedule"] = optimizers.cache_key(
        shared["optimizer"], shared["schedule"]
    )
    program = _build(json.dumps(shared, sort_keys=True), spec, devices)
    return dataclasses.replace(program, tx=tx, schedule=schedule)


@functools.lru_cache(maxsize=8)
def _build(
    config_json: str, spec: input_pipeline.DatasetSpec, devices: tuple[jax.Device, ...] | None
) -> Program:
    config = json.loads(config_json)
    fields: dict[str, Any] = config["model"]
    fields["stage_sizes"] = tuple(fields["stage_sizes"])
    model = ResNet(
        **fields,
        n_classes=spec.n_classes,
        axis_name=steps.AXIS,
    )
    tx, schedule = optimizers.from_recipe(
        config["optimizer"], config["schedule"], config["total_steps"]
    )
    pixels = {"mean": np.array(spec.mean, np.float32), "std": np.array(spec.std, np.float32)}
    train_step = steps.make_train_step(
        model,
        tx,
        label_smoothing=config["label_smoothing"],
        accumulation_steps=config["gradient_accumulation_steps"],
        pooled_decay=model.bn_decay if model.bn_running_variance == "pooled" else None,
        **pixels,
    )
    return Program(
        model=model,
        tx=tx,
        schedule=schedule,
        train_step=steps.over_devices(train_step, devices=devices),
        eval_step=steps.evaluate_over_devices(
            steps.make_eval_step(model, **pixels), devices=devices
        ),
    )


def train_and_evaluate(config: ConfigDict, workdir: str) -> RunResult:
    """Trains for config.total_steps, evaluates as planned, writes the run's files.

    A workdir that holds the same config's complete run gives that run's result; one that holds a
    part of it is continued from its last checkpoint, bit for bit as if nothing had happened. On
    several hosts every host calls this, with a workdir that all of them see; the first one writes.

    Raises:
      UserError: a config, data set or workdir that cannot be used; nothing was written.
      Preempted: SIGTERM came; the state was saved. (SIGINT gives a result `aborted`, saved too.)
      RuntimeError: an evaluation that did not count every example once.
      OSError: the workdir cannot be written any more; what was saved before is kept.
    """
    began = time.monotonic()
    with hosts.all_or_none():
        plans.validate(config)
        input_pipeline.fetch_if_missing(config.dataset.name, config.dataset.data_dir)
        spec = input_pipeline.describe(**config.dataset.to_dict())
        program = build(config, spec)
        plan = plans.make_plan(
            config,
            n_train_examples=spec.n_train_examples,
            n_eval_examples=spec.n_eval_examples,
            n_devices=jax.device_count(),
            n_hosts=hosts.count(),
        )
    wanted = files.lasting(files.config_as_json(config))
    hosts.agree({"config": wanted, "git": files.git_commit(), "versions": files.versions()})
    folder, complete = epath.Path(workdir), None
    with contextlib.ExitStack() as stack:
        with hosts.all_or_none():
            if hosts.is_first():
                complete = stack.enter_context(files.claimed(folder, config))
        complete = hosts.first_says(complete)
        if complete is not None:
            return known_result(folder, complete)
        with hosts.all_or_none():
            if not (folder / "config.json").exists():
                raise UserError(f"workdir={workdir}: is not seen; give a path all hosts share")
        return run(config, spec, program, plan, folder, began)


def known_result(folder: epath.Path, complete: Mapping[str, Any]) -> RunResult:
    """The result in a complete run's run.json."""
    if set(complete) != {field.name for field in dataclasses.fields(RunResult)}:
        raise UserError(
            f"{folder / 'run.json'}: was not written by this version of the code; "
            "give another workdir, or remove this one"
        )
    if hosts.is_first():
        print(f"{folder}: this run is complete already")
    return RunResult(**complete)


def run(
    config: ConfigDict,
    spec: input_pipeline.DatasetSpec,
    program: Program,
    plan: plans.Plan,
    folder: epath.Path,
    began: float,
) -> RunResult:
    """Takes the run up where its folder has it, and sees it through to its result."""
    dataset = config.dataset.to_dict()
    here = {
        "host_index": jax.process_index(),
        "n_hosts": plan.n_hosts,
        "n_local_devices": jax.local_device_count(),
    }
    image = jax.ShapeDtypeStruct(spec.image_shape, config.dataset.image_dtype)
    initial = steps.init_state(program.model, program.tx, spec.image_shape, config.seed)
    checkpoints = checkpoint.Checkpoints(
        folder,
        config.keep_checkpoints,
        every_steps=config.checkpoint_every_steps,
        every_minutes=config.checkpoint_every_minutes,
        look_every_steps=config.log_every_steps,
    )
    start, record = restored(config, checkpoints, initial)
    step = int(start.step)
    if hosts.is_first():
        print(summary(config, plan, initial.params, step), flush=True)
    with hosts.all_or_none():
        journal = Journal(config, plan, folder, program.schedule, record)
    batches = input_pipeline.train_batches(
        dataset,
        seed=config.seed,
        global_batch_size=plan.global_batch_size,
        first_step=step,
        **here,
    )
    eval_batches = input_pipeline.eval_batches(
        dataset, device_batch_size=plan.device_eval_batch_size, **here
    )

    with Signals() as signals:
        compile_steps(program, initial, plan, image)
        state = steps.place(start)
        journal.start(init_seconds=time.monotonic() - began)
        while True:
            if step in plan.eval_steps and not journal.has_evaluated(step):
                sums = evaluator.count(program.eval_step, state, signals.while_quiet(eval_batches))
                if not signals.noted:
                    journal.record_evaluation(evaluator.total(sums, step, plan.n_eval_examples))
            if journal.is_over:
                break
            stop = signals.noted or signals.received()
            if stop or checkpoints.due(step):
                checkpoints.save(step, state, journal.as_record(step))
            if stop:
                break
            state, metrics = program.train_step(state, next(batches))
            step += 1
            journal.record_step(step, metrics)
    if checkpoints.wanted and journal.is_over and not journal.diverged:
        checkpoints.save(step, state, journal.as_record(step))
    checkpoints.close()
    journal.close(step)
    if not journal.is_over and not signals.by_user:
        raise Preempted(step)
    result = result_of(config, plan, journal, checkpoints.steps())
    if hosts.is_first():
        files.write_json(folder / "run.json", dataclasses.asdict(result))
    return result


def restored(
    config: ConfigDict, checkpoints: checkpoint.Checkpoints, initial: steps.TrainState
) -> tuple[steps.TrainState, Record]:
    """Where to begin: the last checkpoint that can be read, or the initial state.

    Raises:
      UserError: the hosts found different steps, or another number of hosts wrote it.
    """
    found = checkpoints.restore_latest(initial)
    hosts.agree({"checkpoint": None if found is None else int(found[0].step)})
    if found is None:
        return initial, Record()
    if set(found[1]) != {field.name for field in dataclasses.fields(Record)}:
        raise checkpoint.AnotherVersionError(checkpoints.directory.parent)
    state, record = found[0], Record(**found[1])
    if record.n_hosts != hosts.count() and not config.allow_host_count_change:
        raise UserError(
            f"hosts={hosts.count()}: the checkpoint of step {int(state.step)} is from "
            f"{record.n_hosts}, whose batches were others; run on as many, or set "
            "--config.allow_host_count_change=True"
        )
    return state, record


def batch_shapes(
    n_devices: int, device_batch_size: int, image: jax.ShapeDtypeStruct
) -> dict[str, jax.ShapeDtypeStruct]:
    """What the steps take, as `input_pipeline.train_batches` shapes it; `image` is one image."""
    shape = (n_devices, device_batch_size)
    images = jax.ShapeDtypeStruct((*shape, *image.shape), image.dtype)
    label, either = jax.ShapeDtypeStruct(shape, np.int32), jax.ShapeDtypeStruct(shape, bool)
    return {"image": images, "label": label, "mask": either, "flip": either}


def compile_steps(
    program: Program,
    initial: steps.TrainState,
    plan: plans.Plan,
    image: jax.ShapeDtypeStruct,
) -> None:
    """Runs both steps once on blank images, so that the clock starts with everything compiled."""

    def blank(device_batch_size: int) -> dict[str, np.ndarray]:
        shapes = batch_shapes(jax.local_device_count(), device_batch_size, image)
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)

    state = steps.place(initial)
    train_batch, eval_batch = blank(plan.device_batch_size), blank(plan.device_eval_batch_size)
    if hosts.count() > 1:  # no collective before every host has compiled
        program.train_step.lower(state, train_batch).compile()
        program.eval_step.lower(state, eval_batch).compile()
        hosts.wait_for_all()
    state, _ = program.train_step(state, train_batch)
    jax.block_until_ready(program.eval_step(state, eval_batch))


def summary(config: ConfigDict, plan: plans.Plan, params: Any, first_step: int) -> str:
    """What is about to run, on one screen."""
    devices = jax.devices()
    weights = [x.size for x in jax.tree.leaves(params)]
    hyperparameters = ", ".join(f"{k}={v}" for k, v in sorted(config.optimizer.items()))
    lines = [
        f"recipe      {config.recipe}, seed {config.seed}",
        f"optimizer   {hyperparameters}",
        f"model       {sum(weights):,} parameters in {len(weights)} tensors, "
        f"{config.model.compute_dtype}, BN span {config.model.bn_span}",
        f"data        {config.dataset.name}: {plan.n_train_examples:,} training and "
        f"{plan.n_eval_examples:,} evaluation examples",
        f"plan        {plan.total_steps} steps of batch {plan.global_batch_size:,} "
        f"({plan.data_epochs:.2f} data epochs), warm-up {plan.warmup_steps:g}, "
        f"{len(plan.eval_steps)} evaluations, target {config.target_accuracy:.4g}",
        f"devices     {len(devices)} x {devices[0].device_kind} on {plan.n_hosts} host(s), "
        f"{plan.device_batch_size} examples each"
        + (f", {plan.micro_batch_size} at a time" if plan.gradient_accumulation_steps > 1 else ""),
    ]
    if first_step:
        lines.append(f"continued   from the checkpoint of step {first_step}")
    for word in ("unverified", "assumed"):
        if config[word]:
            lines.append(f"{word:<11} {', '.join(config[word])}")
    return "\n".join(lines)


def result_of(
    config: ConfigDict, plan: plans.Plan, journal: Journal, checkpoint_steps: Sequence[int]
) -> RunResult:
    """The run's verdict and provenance."""
    record, devices = journal.record, jax.devices()
    diverged = journal.divergence
    if diverged:
        good = [s for s in checkpoint_steps if s <= diverged["step"] - record.bad_steps]
        diverged = diverged | {"last_checkpoint": max(good, default=None)}
    accuracies = [point.accuracy for point in journal.curve]
    return RunResult(
        recipe=config.recipe,
        optimizer=config.recipe.partition(":")[0],
        dataset=config.dataset.name,
        seed=config.seed,
        status="diverged" if diverged else "done" if journal.is_over else "aborted",
        diverged=diverged,
        target_accuracy=config.target_accuracy,
        steps_to_target=journal.steps_to_target,
        seconds_to_target=record.seconds_to_target,
        final_accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        total_steps=config.total_steps,
        global_batch_size=config.global_batch_size,
        n_eval_examples=plan.n_eval_examples,
        plan=plan.as_dict(),
        seconds={
            "init": record.init_seconds,
            "train": record.train_seconds,
            "eval": record.eval_seconds,
            "cpu": record.cpu_seconds,
        },
        versions=files.versions(),
        git=files.git_commit(),
        device={
            "kind": devices[0].device_kind,
            "count": len(devices),
            "hosts": plan.n_hosts,
            "cores": n_cores(),
        },
        unverified=tuple(config.unverified),
        assumed=tuple(config.assumed),
    )
