"""Example plans with round numbers."""


def step(compute, link=0.0, **parts):
    return {
        "fits": True,
        "needed_mib": 2048.0,
        "flops": 1e12,
        "optimal_seconds": compute / 2,
        "stablehlo_lines": 4000,
        "compile_seconds": {"wall": 100.0, "cpu": 90.0},
        "compute_seconds": compute,
        "link_seconds": link,
        "compute_seconds_by_part": parts or {"forward": compute},
        "link_seconds_by_part": {"gather": link} if link else {},
        "collectives": {"all-gather": {"count": 2, "bytes": 1_000_000}} if link else {},
    }


def plan(recipe, train, total_steps=1000, batch=32_768, **more):
    return {
        "recipe": recipe,
        "topology": "v3:16x8",
        "n_devices": 256,
        "device_batch_size": batch // 256,
        "global_batch_size": batch,
        "total_steps": total_steps,
        "n_evaluations": 10,
        "eval_batches": 2,
        "hbm_gib": 16,
        "roots_per_device": 11,
        "versions": {"jax": "0"},
        "train_step": train,
        "eval_step": step(0.05),
        **more,
    }


def full():
    """The plans of the anchor, of the baseline, and of Shampoo at two batches."""
    return [
        plan("lars:mlperf_v07", step(0.154)),  # 154 + 20 evaluations of 0.05 s = 155 s
        plan("nesterov:nado", step(0.150)),
        plan("shampoo:readme", step(0.155, 0.002, forward=0.15, roots=0.005), 500),
        plan("shampoo:mlperf_v1", step(0.16, forward=0.15, roots=0.01)),
        plan("shampoo:mlperf_v1_64k", step(0.31, forward=0.30, roots=0.01), batch=65_536),
    ]
