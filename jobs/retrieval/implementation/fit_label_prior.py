"""Fits the weight of the label prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.significance import compute_p_value, loses
from ratchet.data.tables import read_shards, write_table
from ratchet.data.triplets import find_corpus_rows, find_own_rows
from ratchet.data.vectors import read_blocks
from ratchet.errors import InputError
from ratchet.jobs.retrieval.fit_label_prior import Config, Inputs
from ratchet.jobs.training.evaluation import HeldOutRows
from ratchet.models.search.ranks import Relevant, score_relevant
from ratchet.orchestrator.job_interface import Context, Progress, Result

QUERIES_AT_ONCE = 64
"""Rows of scores that are compared at a time."""


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    corpus, valid = read_shards(inputs.corpus, ["id"]), read_shards(inputs.valid)
    labels = find_corpus_rows(read_shards(inputs.train, ["id", "positives"]), "positives", corpus, "train")[1]
    prior_N = np.log1p(np.bincount(labels, minlength=len(corpus))).astype(np.float32)
    relevant = Relevant(*find_corpus_rows(valid, "positives", corpus))
    parts = [block_QD for _, block_QD in read_blocks(inputs.query_embeddings, valid["id"].combine_chunks())]
    query_QD, own_Q = np.concatenate(parts), find_own_rows(valid, corpus)
    ids = corpus["id"].combine_chunks()
    _, first_ND = next(read_blocks(inputs.corpus_embeddings, ids))
    # The product of the mean lengths. For vectors of length 1 this is 1.
    scale = float(np.linalg.norm(query_QD, axis=1).mean()) * float(np.linalg.norm(first_ND, axis=1).mean())
    weights = [0.0, *(weight * scale for weight in config.weights)]
    rank_WR = np.ones((len(weights), len(relevant.indices)), np.int64)
    own_R = score_relevant(query_QD, relevant, read_blocks(inputs.corpus_embeddings, ids, mapped=True))
    for first, block_ND in read_blocks(inputs.corpus_embeddings, ids):
        prior_n = prior_N[first : first + len(block_ND)]
        for start in range(0, len(relevant.indices), QUERIES_AT_ONCE):
            here = slice(start, start + QUERIES_AT_ONCE)
            query_R = relevant.query_R[here]
            score_RN = query_QD[query_R] @ block_ND.T
            # Not the query itself, and not the document, whose score may be rounded up.
            for column_R in (own_Q[query_R] - first, relevant.indices[here] - first):
                inside = np.flatnonzero((column_R >= 0) & (column_R < len(block_ND)))
                score_RN[inside, column_R[inside]] = -np.inf
            for number, weight in enumerate(weights):
                limit_R = own_R[here] + weight * prior_N[relevant.indices[here]]
                rank_WR[number, here] += (score_RN + weight * prior_n > limit_R[:, None]).sum(1)
        context.progress(Progress(first + len(block_ND), len(corpus), "documents"))
    held_out = HeldOutRows(valid)
    found = [held_out.evaluate(config.metric, rank_R, relevant) for rank_R in rank_WR]
    before = _read_reference(inputs.reference, config.metric, valid, held_out)
    best, p_value = choose(config, [one.metrics[config.metric] for one in found], [one.sums for one in found], before)
    table = pa.table({"id": corpus["id"], "prior": pa.array(weights[best] * prior_N, pa.float32())})
    write_table(context.out / "prior" / "shard-00000.parquet", table)
    values = [round(one.metrics[config.metric], 6) for one in found]
    metric = f"valid/{config.metric}"
    rows = [
        {"weight": round(weight, 6), **{f"valid/{name}": value for name, value in one.metrics.items()}}
        for weight, one in zip(weights, found, strict=True)
    ]
    return Result(
        {"weight": round(weights[best], 6), metric: values[best], f"{metric}_start": values[0], "p_value": p_value},
        {"weights of the label prior": [row | {"best": n == best} for n, row in enumerate(rows)]},
        note="" if best else "no label prior: no weight was significantly better without a loss on unseen labels",
    )


def choose(
    config: Config,
    values: Sequence[float],
    sums: Sequence[Mapping[str, Sequence[float]]],
    unseen_before: Sequence[float] | None = None,
) -> tuple[int, float]:
    """Return (the number of the best weight, 0 for none; the p-value of the best one against none). Weights with which
    unseen labels lose against `unseen_before` are left out. values: the metric by weight, the first of which is 0.
    sums: see `Evaluation.sums`; unseen_before: the like of an evaluation before training. None: of weight 0."""
    before = sums[0].get("unseen") if unseen_before is None else unseen_before
    allowed = [
        number
        for number in range(1, len(values))
        if before is None or not loses(np.array(before), np.array(sums[number]["unseen"]))
    ]
    if not allowed:
        return 0, 1.0
    p_value = compute_p_value(np.array(sums[0]["all"]), np.array([sums[number]["all"] for number in allowed]))
    best = max(allowed, key=lambda number: values[number])
    return (best if p_value <= config.significance_level else 0), float(f"{p_value:.6g}")


def _read_reference(path: Path | None, metric: str, valid: pa.Table, held_out: HeldOutRows) -> list[float] | None:
    """Return the sums over groups of a metric of unseen labels in another evaluation. None: there is none."""
    if path is None:
        return None
    table = pq.read_table(path)
    if table["id"].to_pylist() != valid["id"].to_pylist() or metric not in table.column_names:
        raise InputError(
            f"{path}: has other queries than the held-out ones, or no {metric}; expected an evaluation of these;"
            " evaluate them"
        )
    return held_out.sum(table[metric].to_numpy(zero_copy_only=False).astype(np.float64)).get("unseen")
