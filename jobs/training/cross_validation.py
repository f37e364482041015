"""Cross-validation of a finetuning job on its training rows, where `valid` has too few groups to decide.

The training rows are split into folds of whole groups. For each fold a model is trained on the other folds with the
same settings, and evaluated on the fold before training and after each epoch. Together the folds are a history over all
training rows, which decides whether training improves the base, and at which epoch.

Each fold trains in a folder of its own below `context.work`, and resumes there.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ratchet.data.significance import MIN_VALID_GROUPS, number_groups
from ratchet.data.tables import read_shards, write_table
from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.ray_train import train
from ratchet.jobs.training.schedule import TrainHistory, is_better
from ratchet.orchestrator.job_interface import Context, Progress

FOLDS = 4
MIN_TRAIN_GROUPS = 8
"""Fewer groups of training rows are not cross-validated."""


def needs_cross_validation(config: FinetuneConfig, inputs: Any) -> bool:
    """Return whether a cross-validation decides. It does not after an earlier training on the same rows (a current
    best), which has seen the rows of every fold, and not where settings choose the training steps or the model."""
    if inputs.valid is None or inputs.current_best is not None:
        return False
    if config.allow_regression or config.keep == "last" or config.patience is not None:
        return False
    if config.eval_steps is not None or config.kept_steps or config.warmup_steps is not None:
        return False
    valid_groups = number_groups(read_shards(inputs.valid)).max(initial=-1) + 1
    train_groups = number_groups(read_shards(inputs.mined)).max(initial=-1) + 1
    return bool(valid_groups < MIN_VALID_GROUPS and train_groups >= MIN_TRAIN_GROUPS)


def cross_validate(
    context: Context,
    config: FinetuneConfig,
    task_class: type,
    inputs: Any,
    choose_pool: Callable[[pa.Table], np.ndarray | None],
) -> TrainHistory:
    """Train and evaluate on each fold. Return the history over all training rows, with the best epoch.

    choose_pool: returns the argument `pool_rows` for held-out rows."""
    rows = read_shards(inputs.mined)
    group_Q = number_groups(rows)
    order_C = np.random.default_rng(config.seed).permutation(int(group_Q.max()) + 1)
    fold_Q = order_C[group_Q] % FOLDS
    histories = []
    for fold in range(FOLDS):
        folder = context.work / f"fold-{fold}"
        held_out = rows.filter(pa.array(fold_Q == fold))
        write_table(folder / "mined" / "shard-00000.parquet", rows.filter(pa.array(fold_Q != fold)))
        write_table(folder / "valid" / "shard-00000.parquet", held_out)
        context.files.send(folder)
        make_task = partial(
            task_class,
            inputs=replace(inputs, mined=folder / "mined", valid=folder / "valid", ranking=None),
            resources=context.resources,
            pool_rows=choose_pool(held_out),
        )
        report = partial(_report_fold, context.progress, fold)
        own_context = replace(context, work=folder, logs=None, progress=report)
        histories.append(train(own_context, config, make_task, folder / "best"))
    return join_histories(config.metric, histories, len(rows))


def _report_fold(report: Callable[[Progress], None], fold: int, progress: Progress) -> None:
    report(replace(progress, stage=f"fold {fold + 1} of {FOLDS}: {progress.stage}"))


def join_histories(metric: str, histories: list[TrainHistory], rows: int) -> TrainHistory:
    """Return one history over the held-out rows of all folds, with the means of `metric` and `eval_loss`."""

    def join(sums: list[dict[str, list[float]]]) -> tuple[dict[str, float], dict[str, list[float]]]:
        joined = {}
        for name in ("all", "loss"):
            joined[name] = np.concatenate([one[name] for one in sums]).tolist()
        return {metric: sum(joined["all"]) / rows, "eval_loss": -sum(joined["loss"]) / rows}, joined

    start, start_sums = join([one.start_sums for one in histories])
    together = TrainHistory(start=start, start_sums=start_sums)
    for epoch in range(len(histories[0].sums)):
        metrics, sums = join([one.sums[epoch] for one in histories])
        together.evaluations.append(metrics)
        together.sums.append(sums)
        if together.best is None or is_better(metric, metrics, together.evaluations[together.best]):
            together.best = epoch
    return together
