"""Rank documents for new queries with the models of finished runs, and fuse the rankings."""

from typing import Annotated, Any

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.jobs.retrieval import embed, evaluate_retrieval
from ratchet.orchestrator.finished_run import FinishedRun, find_run
from ratchet.orchestrator.step import Output, Row, Step, Summary, step
from ratchet.recipes.parts.predictions import (
    Systems,
    TrainingQueries,
    fuse_rankings,
    list_systems,
    prepare_new_queries,
    rank_by_bm25,
    rank_queries,
    write_files,
)


def predict(
    *, run: Annotated[tuple[str, ...], MinLen(1)], queries: str = "", bm25: bool | None = None
) -> Summary:
    """Rank the corpus of finished runs for new queries, and write the best documents of each query.

    The rankings of each run's embedder and reranker, of its nearest training queries (if the run evaluated them) and
    of BM25 are fused into one ranking. The fusion weights are chosen on the held-out queries; all runs must have the
    same corpus, held-out queries and test queries. The results are predictions.csv, predictions.jsonl and
    predictions.trec in the folder of this run.

    run         ids of finished runs of retriever, misconceptions or quickstart; a prefix means the newest such run
    queries     Eedi's test.csv, BEIR, FlagEmbedding JSONL, JSONL with `query`, or text with a query per line; labels
                are not needed. Empty: the test queries of the runs, on which the fused ranking is evaluated
    bm25        whether BM25 is one of the fused systems; none: if one of the runs used it

    Job settings: --set write_predictions.columns=QuestionId_Answer,MisconceptionId and --set write_predictions.top=25
    set the format; --set fuse.method=rrf fuses by reciprocal ranks."""
    runs = [find_run(name) for name in run]
    last = [find_last(one) for one in runs]
    prepared = [one.step("prepare") for one in runs]
    for part in ("corpus", "valid", "test"):
        if len({one.digest("prepare", part) for one in runs}) > 1:
            raise InputError(
                f"run: {', '.join(one.run_id for one in runs)} given, with other data in {part}; expected runs with the"
                " same documents and splits; give runs with the same data, seed and fractions"
            )
    parts = {
        part: prepared[0][part] if runs[0].digest("prepare", part) else None
        for part in ("valid", "test")
    }
    corpus = prepared[0]["corpus"]
    valid = parts["valid"]
    test = parts["test"]
    if test is None and not queries:
        raise InputError(
            f"queries: none given, and run {runs[0].run_id} has no test queries; expected some; give a file"
        )
    readings = [text for one in runs for text in one.settings["prepare"].get("reading") or [""]]
    new = prepare_new_queries(queries, "queries", readings) if queries else None
    systems: Systems = {}
    for index, (one, iteration) in enumerate(zip(runs, last, strict=True)):
        systems |= find_systems(
            one, iteration, "model" if len(runs) == 1 else f"model{index}", new, corpus
        )
    if bm25 is None:
        bm25 = any("bm25/evaluate_valid" in one.step_ids for one in runs)
    if bm25:
        held_out = rank_by_bm25(valid, corpus, "valid") if valid else None
        systems["bm25"] = held_out, rank_by_bm25(new or test, corpus, "queries")
    if valid is None and (bm25 or len(runs) > 1):
        raise InputError(
            "run: several systems given, without held-out queries; expected them, to weight the systems"
        )
    ranking, rows = fuse_rankings(systems, valid)
    if new is None:
        tested = {name: ranked for name, (_, ranked) in systems.items()}
        # `evaluate_retrieval` orders a fused ranking by its fused scores, which stand in the column of teacher scores.
        if len(systems) > 1:
            inputs: dict[str, Any] = {"queries": test, "corpus": corpus, "scored": ranking}
            tested["fused"] = step(
                "fused/evaluate", evaluate_retrieval.JOB, **inputs, system="reranked", tag="fused"
            )
        rows = [
            Row(
                row.label,
                {**row.columns, "MAP@25": tested[row.label].metric("map@25")},
                steps=row.steps,
            )
            for row in rows
        ]
    return Summary(rows, files=write_files(ranking, corpus))


def find_systems(
    run: FinishedRun, last: str, name: str, new: Step | None, corpus: Output
) -> Systems:
    """Return the systems of a run's last iteration, ranked for the queries `new`. None: for the run's test queries."""
    steps = {end: f"{last}/evaluate{end}" for end in ("", "_reranked", "_knn")}
    if new is None:
        ranked = {end: run.get(found) for end, found in steps.items()}
    else:
        # The last one made the whole model: the others exist with method=lora, and with keep=all.
        made = next(
            one
            for one in ("merge", "choose", "finetune")
            if f"{last}/{one}_embedder" in run.step_ids
        )
        model = run.step(f"{last}/{made}_embedder")["model"]
        reranker = run.get(f"{last}/{made}_reranker")
        vectors = run.get(f"{last}/embed_corpus") or step(
            f"{name}/embed_corpus", embed.JOB, model=model, texts=corpus
        )
        train: TrainingQueries | None = None
        if f"{steps['_knn']}_valid" in run.step_ids:
            train = (
                run.get("synthetic/filter") or run.step("prepare")["train"],
                run.step(f"{last}/embed_train"),
            )
        folder = reranker["model"] if reranker else None
        ranked = {**rank_queries(name, new, corpus, model, vectors, folder, train=train)}
    return list_systems(
        name, ranked, {end: run.get(f"{found}_valid") for end, found in steps.items()}
    )


def find_last(run: FinishedRun) -> str:
    """Return the name of the last iteration that the run finished. Raises InputError if there is none."""
    number = 0
    while not run.step_ids.keys().isdisjoint(
        (f"iter{number}/merge_embedder", f"iter{number}/embed_corpus")
    ):
        number += 1
    if not number:
        raise InputError(
            f"run: {run.run_id} of recipe {run.recipe} given; expected a run of retriever, misconceptions or quickstart"
            " that finished an iteration; give its id"
        )
    return f"iter{number - 1}"
