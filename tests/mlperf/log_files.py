"""Writes MLPerf result files as submitters leave them, for the tests of the report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_MS = 1_621_399_197_985
# Shampoo's published submission (MLPerf v1.0, open division): a typical path, then the last look.
SHAMPOO_PATH = (0.316, 0.445, 0.461, 0.579, 0.619, 0.655, 0.685, 0.712, 0.739, 0.753)
SHAMPOO_LAST = (0.75946, 0.76134, 0.76024, 0.75968, 0.76022)
SHAMPOO_SECONDS = (209.315, 198.246, 199.836, 196.340, 199.201)
SHAMPOO = {
    "submission_org": "Google", "submission_platform": "tpu-v4-256",
    "submission_division": "open", "submission_benchmark": "resnet",
    "submission_status": "research", "train_samples": 1281167, "eval_samples": 50000,
    "global_batch_size": 32768, "opt_name": "distributed shampoo",
    "shampoo_opt_learning_rate_warmup_epochs": 5,
    "shampoo_opt_learning_rate_train_steps": 1727.0,
    "shampoo_opt_learning_rate_decay_steps": 1531.75,
}  # fmt: skip


def line(key: str, value: Any = None, time_ms: float = START_MS, **metadata: Any) -> str:
    text = json.dumps({"time_ms": time_ms, "key": key, "value": value, "metadata": metadata})
    return f":::MLLOG {text}"


def log_lines(
    header: dict[str, Any],
    accuracies: Sequence[Any],
    seconds: float,
    *,
    epochs: Sequence[float] | None = None,
    block_epochs: Sequence[float] | None = None,
    status: str = "success",
    n_blocks: int = 1000,
) -> list[str]:
    """Returns the lines of one run: blocks of four epochs numbered from 1 unless told."""
    n = len(accuracies)
    block_epochs = [4] * n if block_epochs is None else block_epochs
    epochs = [sum(block_epochs[: i + 1]) for i in range(n)] if epochs is None else epochs
    lines = [line("cache_clear", True), line("init_start")]
    lines += [*(line(k, v) for k, v in header.items()), line("init_stop")]
    lines.append(line("run_start"))
    for i, accuracy in enumerate(accuracies):
        now = START_MS + 1000 * seconds * (i + 1) / n
        if i < n_blocks:
            block = {"first_epoch_num": 1 + sum(block_epochs[:i]), "epoch_count": block_epochs[i]}
            lines.append(line("block_start", **block))
        lines.append(line("eval_accuracy", accuracy, now, epoch_num=epochs[i]))
        if i < n_blocks:
            lines.append(line("block_stop", None, now, **block))
    return [*lines, line("run_stop", None, START_MS + 1000 * seconds, status=status)]


def write_shampoo(folder: Path) -> Path:
    """Writes the five runs of the published Shampoo submission, result_0.txt to result_4.txt."""
    folder.mkdir(parents=True)
    for i, (last, seconds) in enumerate(zip(SHAMPOO_LAST, SHAMPOO_SECONDS, strict=True)):
        header = SHAMPOO | {"seed": 1621398787 + i}
        lines = log_lines(header, [*SHAMPOO_PATH, last], seconds)
        prefixed = [f"I0518 21:33:07.307321 427370 mllog.py:168] {text}" for text in lines]
        (folder / f"result_{i}.txt").write_text("\n".join(prefixed) + "\n")
    return folder
