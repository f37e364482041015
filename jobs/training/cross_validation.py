"""Cross-validation of a finetuning job on its training rows, where few held-out rows could not decide.

The training rows are split into folds of whole groups. For each fold a model is trained on the other folds with the
same settings, and evaluated on the fold before training and after each epoch. Together the folds are a history over all
training rows, which decides whether training improves the base, and at which epoch.

Each fold trains in a folder of its own below `context.work`, and resumes there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.data.rankings import tabulate_ranks
from ratchet.data.significance import MIN_VALID_GROUPS, number_groups
from ratchet.data.tables import TEACHER_SCORES, DocumentRows, read_shards, write_table
from ratchet.data.triplets import find_corpus_rows, find_own_rows
from ratchet.errors import InputError
from ratchet.jobs.prompt_settings import list_instructions, list_own_examples
from ratchet.jobs.training.checkpoints import checkpoint_folder
from ratchet.jobs.training.config import FinetuneConfig, chooses_model
from ratchet.jobs.training.ray_train import train
from ratchet.jobs.training.schedule import TrainHistory, is_better
from ratchet.models.embedder import encoder
from ratchet.models.search.ranks import Relevant, rank_and_search
from ratchet.orchestrator.job_interface import Context, Progress

FOLDS = 4
"""Number of folds where valid has too few groups."""
MIN_TRAIN_GROUPS = 8
"""Fewer groups of training rows are not cross-validated."""
TOP = 100
"""Number of documents per query in rankings."""


@dataclass(frozen=True)
class CrossValidation:
    history: TrainHistory
    """Over all training rows, with the best epoch."""
    held_out: list[pa.Table]
    """The rows of each fold."""
    models: list[Path]
    """The adapter or model of each fold at the best epoch, trained on the other folds."""


def count_folds(config: Any, inputs: Any) -> int:
    """Return the number of folds of a cross-validation; 0 for none. Without `config.folds`, one decides where valid has
    too few groups. It does not after an earlier training on the same rows (a current best), which has seen the rows of
    every fold, and not where settings choose the training steps or the model."""
    if config.folds is not None:
        return config.folds
    if inputs.valid is None or inputs.current_best is not None or chooses_model(config):
        return 0
    valid_groups = number_groups(read_shards(inputs.valid)).max(initial=-1) + 1
    train_groups = number_groups(read_shards(inputs.mined)).max(initial=-1) + 1
    if valid_groups < MIN_VALID_GROUPS and train_groups >= MIN_TRAIN_GROUPS:
        return FOLDS
    return 0


def cross_validate(
    context: Context,
    config: FinetuneConfig,
    task_class: type,
    inputs: Any,
    choose_pool: Callable[[pa.Table], np.ndarray | None],
    folds: int,
) -> CrossValidation:
    """Train and evaluate on each fold.

    choose_pool: returns the argument `pool_rows` for held-out rows."""
    rows = read_shards(inputs.mined)
    group_Q = number_groups(rows)
    groups = int(group_Q.max(initial=-1)) + 1
    if folds > groups:
        raise InputError(
            f"finetune_embedder.folds: {folds} given, for {groups} groups of training queries; expected at most as many"
            " folds; lower it"
        )
    order_C = np.random.default_rng(config.seed).permutation(groups)
    fold_Q = order_C[group_Q] % folds
    histories = []
    held_out = []
    contexts = []
    for fold in range(folds):
        folder = context.work / f"fold-{fold}"
        held_out.append(rows.filter(pa.array(fold_Q == fold)))
        trained = rows.filter(pa.array(fold_Q != fold))
        trained = drop_held_out_negatives(trained, held_out[fold])
        write_table(folder / "mined" / "shard-00000.parquet", trained)
        write_table(folder / "valid" / "shard-00000.parquet", held_out[fold])
        context.files.send(folder)
        make_task = partial(
            task_class,
            inputs=replace(inputs, mined=folder / "mined", valid=folder / "valid", ranking=None),
            resources=context.resources,
            pool_rows=choose_pool(held_out[fold]),
        )
        report = partial(_report_fold, context.progress, f"fold {fold + 1} of {folds}")
        contexts.append(replace(context, work=folder, logs=None, progress=report))
        kept = replace(config, keep="all")
        histories.append(train(contexts[fold], kept, make_task, folder / "best"))
    together = join_histories(config.metric, histories, len(rows))
    models = []
    for own_context, history in zip(contexts, histories, strict=True):
        models.append(checkpoint_folder(own_context, history.evaluated_at[together.best or 0]))
    return CrossValidation(together, held_out, models)


def drop_held_out_negatives(trained: pa.Table, held_out: pa.Table) -> pa.Table:
    """Return the training rows of a fold without the negatives that are positives of held-out rows only. The fold would
    push these documents away from all queries. A model of all rows does not: it trains on their queries too."""
    known = set(chain.from_iterable(trained["positives"].to_pylist()))
    lost = set(chain.from_iterable(held_out["positives"].to_pylist())) - known
    aligned = ("negatives", "negative_scores", TEACHER_SCORES["negatives"])
    rows = trained.to_pylist()
    for row in rows:
        kept = [place for place, name in enumerate(row["negatives"]) if name not in lost]
        for column in aligned:
            if row.get(column):  # scores may be missing
                row[column] = [row[column][place] for place in kept]
    return pa.Table.from_pylist(rows, schema=trained.schema)


def rank_folds(config: Any, inputs: Any, found: CrossValidation, device: str) -> pa.Table:
    """Rank the corpus for each training row, by the model of the fold in which the row is held out. Return RANKED with
    the column of teacher scores, by which `evaluate_retrieval` orders, in the order of the training rows."""
    corpus = read_shards(inputs.corpus, ["id", "text"])
    rows_of = DocumentRows(corpus["id"])
    tables = []
    for held_out, model in zip(found.held_out, found.models, strict=True):
        start = (model, None) if config.method == "full" else (inputs.base, model)
        embedder = encoder.load(*start, dtype=config.dtype, device=device)
        tasks = list_instructions(config, held_out)
        examples = list_own_examples(held_out)
        query_QD = embedder.encode(held_out["text"].to_pylist(), "query", tasks, examples)
        doc_ND = embedder.encode(corpus["text"].to_pylist(), "passage")
        relevant = Relevant(*find_corpus_rows(held_out, "positives", rows_of))
        own_Q = find_own_rows(held_out, rows_of)
        ranked = rank_and_search(
            query_QD, relevant, partial(list, [(0, doc_ND)]), TOP, exclude_Q=own_Q, device=device
        )
        tables.append(tabulate_ranks(held_out, corpus["id"], relevant.indptr, own_Q, *ranked))
    together = pa.concat_tables(tables)
    together = together.append_column("teacher_scores", together["scores"])
    order = pc.index_in(read_shards(inputs.mined, ["id"])["id"], together["id"])
    return together.take(order)


def _report_fold(report: Callable[[Progress], None], fold: str, progress: Progress) -> None:
    report(replace(progress, stage=f"{fold}: {progress.stage}"))


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
