"""One run: from a config to its result, in one visible loop."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

import checkpoint
import evaluator
import input_pipeline
import step as steps
from configs import optimizers
from configs import plan as plans
from errors import Preempted, UserError
from input_pipeline.host import n_cores
from models.resnet import ResNet
from run import distributed, files, identity, schema
from run.distributed import Signals
from run.logger import RunLogger, RunProgress
from run.schema import RunResult


@dataclasses.dataclass(frozen=True)
class Program:
    """What is built from a config and does not depend on its seed.

    Attributes:
      train_step, eval_step: as returned by `jax.pmap`, to call or to lower.
    """

    model: ResNet
    tx: Any
    schedule: Callable[[int], Any]
    train_step: Any
    eval_step: Any


_programs: dict[Any, Program] = {}  # compiled steps, shared by the runs of a process
MOST_PROGRAMS = 8


def build(
    config: ConfigDict,
    spec: input_pipeline.DatasetSpec,
    optimizer: optimizers.Optimizer,
    devices: tuple[jax.Device, ...] | None = None,
) -> Program:
    """Builds the model and the steps.

    The runs of a process share their compiled steps if they differ only in the seed, or in
    hyperparameters that the step reads from its state (`optimizers.cache_key`). A worker therefore
    compiles once for all trials of an optimizer.

    Args:
      optimizer: from `optimizers.from_recipe(config)`.
      devices: None for all; others are for compiling ahead of time.
    """
    tx, schedule = optimizer
    fields = files.config_as_json(config)
    names = ("model", "total_steps", "label_smoothing", "gradient_accumulation_steps")
    key = {name: fields[name] for name in names} | optimizers.cache_key(fields)
    cache_key = json.dumps(key, sort_keys=True), spec, devices
    if cache_key not in _programs:
        if len(_programs) == MOST_PROGRAMS:
            _programs.pop(next(iter(_programs)))
        _programs[cache_key] = _build(config, spec, optimizer, devices)
    return dataclasses.replace(_programs[cache_key], tx=tx, schedule=schedule)


def _build(
    config: ConfigDict,
    spec: input_pipeline.DatasetSpec,
    optimizer: optimizers.Optimizer,
    devices: tuple[jax.Device, ...] | None,
) -> Program:
    tx, schedule = optimizer
    model = ResNet(**config.model.to_dict(), n_classes=spec.n_classes, axis_name=steps.AXIS)
    pixels = {"mean": np.array(spec.mean, np.float32), "std": np.array(spec.std, np.float32)}
    train_step = steps.make_train_step(
        model,
        tx,
        label_smoothing=config.label_smoothing,
        accumulation_steps=config.gradient_accumulation_steps,
        pooled_decay=model.bn_decay if model.bn_running_variance == "pooled" else None,
        **pixels,
    )
    eval_step = steps.make_eval_step(model, **pixels)
    return Program(
        model=model,
        tx=tx,
        schedule=schedule,
        train_step=steps.over_devices(train_step, devices=devices),
        eval_step=steps.evaluate_over_devices(eval_step, devices=devices),
    )


def train_and_evaluate(config: ConfigDict, workdir: str) -> RunResult:
    """Trains for `config.total_steps`, evaluates, and writes the files of the run.

    If the workdir holds a complete run of the same config, returns its result. If it holds a part,
    resumes from the last checkpoint, bit for bit as if it had not been interrupted. On several
    hosts every host calls this with a workdir that all of them see; host 0 writes.

    Raises:
      UserError: an invalid config, data set or workdir; nothing was written.
      Preempted: SIGTERM was received and the state was saved. (SIGINT returns status `aborted`.)
      RuntimeError: an evaluation did not count every example once.
      OSError: the workdir can no longer be written; what was saved before is kept.
    """
    start_time = time.monotonic()
    with distributed.raise_on_all():
        plans.validate(config)
        optimizer = optimizers.from_recipe(config)
        input_pipeline.fetch_if_missing(config.dataset.name, config.dataset.data_dir)
        spec = input_pipeline.describe(**config.dataset.to_dict())
        program = build(config, spec, optimizer)
        plan = plans.make_plan(
            config,
            n_train_examples=spec.n_train_examples,
            n_eval_examples=spec.n_eval_examples,
            n_devices=jax.device_count(),
            n_hosts=distributed.count(),
        )
    fixed = files.fixed_fields(files.config_as_json(config))
    distributed.agree(
        {"config": fixed, "git": identity.git_commit(), "versions": identity.versions()}
    )
    folder, complete = epath.Path(workdir), None
    with contextlib.ExitStack() as stack:
        with distributed.raise_on_all():
            if distributed.is_first():
                complete = stack.enter_context(files.claimed(folder, config))
        complete = distributed.broadcast(complete)
        if complete is not None:
            result = schema.result_of(complete, str(folder / "run.json"))
            if distributed.is_first():
                print(f"{folder}: this run is already complete")
            return result
        with distributed.raise_on_all():
            if not (folder / "config.json").exists():
                raise UserError(
                    f"workdir={workdir}: cannot be seen; use a folder that all hosts share"
                )
        return train(config, spec, program, plan, folder, start_time)


def train(
    config: ConfigDict,
    spec: input_pipeline.DatasetSpec,
    program: Program,
    plan: plans.Plan,
    folder: epath.Path,
    start_time: float,
) -> RunResult:
    """Resumes from the latest checkpoint, if any, and trains to completion."""
    dataset = config.dataset.to_dict()
    host = {
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
    first_state, progress = restore(config, checkpoints, initial)
    step = int(first_state.step)
    fixed = files.fixed_fields(files.config_as_json(config))
    segment = identity.segment(step, fixed, identity.device(n_cores()))
    progress.segments.append(dataclasses.asdict(segment))
    if distributed.is_first():
        print(summary(config, plan, initial.params, step), flush=True)
    with distributed.raise_on_all():
        logger = RunLogger(config, plan, folder, program.schedule, progress)
    batches = input_pipeline.train_batches(
        dataset,
        seed=config.seed,
        global_batch_size=plan.global_batch_size,
        first_step=step,
        **host,
    )
    eval_batches = input_pipeline.eval_batches(
        dataset, device_batch_size=plan.device_eval_batch_size, **host
    )

    with Signals() as signals:
        compile_steps(program, initial, plan, image)
        state = steps.place(first_state)
        logger.start(init_seconds=time.monotonic() - start_time)
        while True:
            if step in plan.eval_steps and not logger.has_evaluated(step):
                sums = evaluator.count(
                    program.eval_step, state, signals.until_received(eval_batches)
                )
                if not signals.received:
                    logger.record_evaluation(evaluator.total(sums, step, plan.n_eval_examples))
            if logger.is_over:
                break
            stop = signals.received or signals.poll()
            if stop or checkpoints.is_due(step):
                checkpoints.save(step, state, logger.as_record(step))
            if stop:
                break
            state, metrics = program.train_step(state, next(batches))
            step += 1
            logger.record_step(step, metrics)
    if checkpoints.are_regular and logger.is_over and not logger.diverged:
        checkpoints.save(step, state, logger.as_record(step))
    checkpoints.close()
    logger.close(step)
    if not logger.is_over and not signals.by_user:
        raise Preempted(step)
    result = result_of(config, plan, logger, checkpoints.steps())
    if distributed.is_first():
        schema.write_result(folder, result)
    return result


def restore(
    config: ConfigDict, checkpoints: checkpoint.Checkpoints, initial: steps.TrainState
) -> tuple[steps.TrainState, RunProgress]:
    """Returns the latest readable checkpoint, or the initial state.

    Raises:
      UserError: the hosts read different steps, or another number of hosts wrote the checkpoint.
    """
    restored = checkpoints.restore_latest(initial)
    distributed.agree({"checkpoint": None if restored is None else int(restored[0].step)})
    if restored is None:
        return initial, RunProgress()
    state, record = restored
    if set(record) != {field.name for field in dataclasses.fields(RunProgress)}:
        raise checkpoint.AnotherVersionError(checkpoints.directory.parent)
    progress = RunProgress(**record)
    if progress.n_hosts != distributed.count() and not config.allow_host_count_change:
        raise UserError(
            f"hosts={distributed.count()}: the checkpoint of step {int(state.step)} is from "
            f"{progress.n_hosts} hosts, which saw other batches; use as many, or set "
            "--config.allow_host_count_change=True"
        )
    return state, progress


def batch_shapes(
    n_devices: int, device_batch_size: int, image: jax.ShapeDtypeStruct
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of `input_pipeline.train_batches`; `image` is the shape of one image."""
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
    """Runs both steps once on blank images, so that everything is compiled before the clock starts.

    On several hosts both are compiled before the first collective, which would time out.
    """

    def blank(device_batch_size: int) -> dict[str, np.ndarray]:
        shapes = batch_shapes(jax.local_device_count(), device_batch_size, image)
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)

    state = steps.place(initial)
    train_batch, eval_batch = blank(plan.device_batch_size), blank(plan.device_eval_batch_size)
    if distributed.count() > 1:
        program.train_step.lower(state, train_batch).compile()
        program.eval_step.lower(state, eval_batch).compile()
        distributed.barrier()
    state, _ = program.train_step(state, train_batch)
    jax.block_until_ready(program.eval_step(state, eval_batch))


def summary(config: ConfigDict, plan: plans.Plan, params: Any, first_step: int) -> str:
    """Returns the lines that are printed before training: recipe, model, data, plan, devices."""
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
        lines.append(f"resumed     from the checkpoint of step {first_step}")
    for word in ("unverified", "assumed"):
        if config[word]:
            lines.append(f"{word:<11} {', '.join(config[word])}")
    return "\n".join(lines)


def result_of(
    config: ConfigDict, plan: plans.Plan, logger: RunLogger, checkpoint_steps: Sequence[int]
) -> RunResult:
    """Returns the content of run.json."""
    progress = logger.progress
    diverged = logger.divergence
    if diverged:
        good = [s for s in checkpoint_steps if s <= diverged["step"] - progress.bad_steps]
        diverged = diverged | {"last_checkpoint": max(good, default=None)}
    accuracies = [point.accuracy for point in logger.curve]
    return RunResult(
        recipe=config.recipe,
        optimizer=config.recipe.partition(":")[0],
        dataset=config.dataset.name,
        seed=config.seed,
        status="diverged" if diverged else "done" if logger.is_over else "aborted",
        diverged=diverged,
        target_accuracy=config.target_accuracy,
        steps_to_target=logger.steps_to_target,
        seconds_to_target=progress.seconds_to_target,
        final_accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        total_steps=config.total_steps,
        global_batch_size=config.global_batch_size,
        n_eval_examples=plan.n_eval_examples,
        plan=plan.as_dict(),
        seconds={
            "init": progress.init_seconds,
            "train": progress.train_seconds,
            "eval": progress.eval_seconds,
            "cpu": progress.cpu_seconds,
        },
        versions=identity.versions(),
        git=identity.git_commit(),
        device=identity.device(n_cores()),
        unverified=tuple(config.unverified),
        assumed=tuple(config.assumed),
        segments=tuple(progress.segments),
    )
