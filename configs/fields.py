"""One mark per config field: may it change on resume, and does it make another row?

A field without a mark is fixed for the length of a run, and runs that differ in it stand in
different rows of a report. Names are as on the command line, `dataset.data_dir`.
"""

# Fields that do not affect training: a run may be resumed with another value.
MAY_CHANGE_ON_RESUME = frozenset(
    {
        "allow_host_count_change",
        "checkpoint_every_minutes",
        "checkpoint_every_steps",
        "dataset.data_dir",
        "keep_checkpoints",
        "on_divergence",
    }
)
# Fields in which the runs of one row may differ.
SAME_ROW = MAY_CHANGE_ON_RESUME | {"seed", "log_every_steps", "unverified", "assumed"}
