"""prepare: read retrieval data of any known format, or example questions, and write corpus/, train/, valid/ and test/.

The folders hold Parquet shards: `train` with the columns `GROUPED` of `ratchet.data.tables`, `valid` and `test` with
`HELD_OUT`. `train` contains the negatives of the data. If all its passages have teacher scores (FlagEmbedding's
`pos_scores` and `neg_scores`), it also has the columns `TEACHER_SCORES`. Finetuning can use both without mining.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import (
    Context,
    Fraction,
    FractionBelowOne,
    Job,
    NonNegativeInt,
    Parents,
    PositiveInt,
    Result,
    Seed,
    Unit,
)

if TYPE_CHECKING:
    from ratchet.data.retrieval import Query, RetrievalData

EXAMPLES = "examples.jsonl"
"""Few-shot examples for queries that have none of their own."""

FEW_GROUPS = 200
"""With fewer groups of queries, a plan says how much they show, and `retriever` cross-validates."""

SplitBy = Literal["question", "document", "query"]


@dataclass(frozen=True)
class Config:
    questions: Annotated[int, Interval(ge=1, le=800)] = 800
    """Number of multiple-choice questions of `examples/misconceptions.jsonl` to read if no data is given."""
    split_by: SplitBy = "question"
    """Queries that stay in one split. `question`: the queries of a question. `document`: queries that share a positive,
    directly or through other queries; no positive of `valid` and `test` is then a positive of a training query.
    `query`: each query is split on its own."""
    test_fraction: FractionBelowOne = 0.2
    """Fraction of the questions (with split_by=document: of the queries) in the test split, which is only used for the
    final metrics. 0: no test split."""
    validation_fraction: FractionBelowOne = 0.1
    """Fraction of the rest in the valid split, which selects checkpoints and settings; at least 8 groups of queries, if
    that leaves two thirds of the rest for training. 0: no valid split."""
    max_held_out: Annotated[PositiveInt, Unit("queries")] = 5000
    """Maximum number of queries (of questions with split_by=question) that are drawn for `valid`, and for `test`: more
    make the intervals of metrics little narrower."""
    unseen_fraction: Fraction = 0.0
    """Minimum fraction of `valid` without a positive of a training query. Set it to the fraction that is expected in
    use, so that models that only memorize labels are not selected. To reach it, the training queries of some positives
    of `valid` are left out, those with the fewest training queries first."""
    folds: Annotated[int, Interval(ge=1, le=1000)] = 1
    """Number of folds of a cross-validation. One is the test split, and `test_fraction` is not used. 1: none."""
    fold: NonNegativeInt = 0
    """Index of the fold that is the test split, from 0."""
    num_examples: NonNegativeInt = 0
    """Number of few-shot examples that are drawn for each query from the training queries of other groups; of Eedi's
    questions those with the same construct first, then with the same subject. Examples of a training query have other
    positives than it."""
    seed: Seed = 42
    """Seed of the split and of the examples."""
    reading: tuple[str, ...] = ()
    """Reading options of each path of `data`, `valid` and `test`, in this order: the same as behind a path, such as
    `query=title&positive=body`. Empty: none."""
    needs_negatives: bool = False
    """Raise an error if the data give no query a negative."""
    shard_rows: Annotated[PositiveInt, Unit("rows")] = 4096
    """Rows per shard. Workers take shards, or pieces of them if there are few rows."""


@dataclass(frozen=True)
class Inputs:
    data: tuple[Path, ...] = ()
    """Eedi CSVs, BEIR folders, or pairs as JSONL, CSV, Parquet or workbooks. Empty: example questions."""
    valid: tuple[Path, ...] = ()
    """Data for `valid` only, instead of a part of `data`."""
    test: tuple[Path, ...] = ()
    """Data for `test` only, instead of a part of `data`."""
    pools: tuple[Path, ...] = ()
    """Files of further documents: JSON Lines with `text`, as FlagEmbedding's `candidate_pool.jsonl`."""


def list_outputs(config: Config) -> tuple[str, ...]:
    names = ["corpus", "train"]
    if config.validation_fraction:
        names.append("valid")
    if config.test_fraction or config.folds > 1:
        names.append("test")
    if config.num_examples:
        names.append(EXAMPLES)
    return tuple(names)


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Read and split the data, so that a bad row is an error, with file and line, before the run starts. Only the first
    rows of large files are read, and their counts are estimates."""
    from ratchet.data.significance import MIN_VALID_GROUPS, describe_groups
    from ratchet.jobs.retrieval.splits import describe, load_data, split_data

    if config.fold >= config.folds:
        raise InputError(
            f"prepare.fold: {config.fold} given; expected less than folds, which is {config.folds}"
        )
    if config.unseen_fraction and not config.validation_fraction:
        raise InputError(
            f"prepare.unseen_fraction: {config.unseen_fraction} given, with validation_fraction=0; expected held-out"
            " queries; raise validation_fraction, or leave it out"
        )
    if inputs.data is None:  # another step makes it
        return Result(parents.get("data", Result()).metrics)
    data = load_data(config, inputs, sampled=True)
    splits = split_data(data, config)
    counts = {"documents": data.num_documents, **measure_texts(data), **data.notes}
    for name, found in splits.items():
        counts[f"{name}/queries"] = round(len(found) / data.share)
    counts["sources"] = count_sources(splits["train"])
    notes = [describe(data, splits)]
    for name, fraction in (("test", config.test_fraction), ("valid", config.validation_fraction)):
        wanted = fraction * len(data.queries) / data.share
        if counts.get(f"{name}/queries", wanted) < wanted / 2:
            notes.append(f"{name} has only {config.max_held_out:,} queries (prepare.max_held_out)")
    groups = len({query.group for query in splits.get("test", ())})
    if data.share == 1 and 1 < groups < FEW_GROUPS:
        notes.append(f"test has {describe_groups(groups)}")
    groups = len({query.group for query in splits.get("valid", ())})
    if data.share == 1 and 0 < groups < MIN_VALID_GROUPS:
        notes.append(
            f"valid has few groups of queries ({groups}): a cross-validation of the training queries decides what is"
            " kept"
        )
    return Result(counts, note="; ".join(filter(None, notes)))


def measure_texts(data: "RetrievalData") -> dict[str, int]:
    """Return the number of characters of the longest text, and of all documents, estimated for a sample."""
    mean = sum(len(document.text) for document in data.corpus) / len(data.corpus)
    return {
        "longest_text": max(len(one.text) for ones in (data.corpus, data.queries) for one in ones),
        "characters": round(mean * data.num_documents),
    }


def count_sources(queries: "Sequence[Query]") -> int:
    """Return the number of data sets that queries are from."""
    return len({query.source for query in queries})


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa

    from ratchet.data import tables
    from ratchet.data.formats.examples import write_examples
    from ratchet.data.retrieval import Query
    from ratchet.data.retrieval.examples import ExampleDraw
    from ratchet.data.retrieval.splits import find_seen
    from ratchet.jobs.retrieval.splits import describe, load_data, split_data

    data = load_data(config, inputs)
    splits = split_data(data, config)
    # By id, descending: all steps order documents with equal scores by row, so metrics do not depend on the order of
    # the data, and are those of trec_eval.
    corpus = sorted(data.corpus, key=lambda document: document.id, reverse=True)
    documents = ({"id": document.id, "text": document.text} for document in corpus)
    tables.write_shards(context.out / "corpus", documents, tables.CORPUS, config.shard_rows)
    scores = []
    if splits["train"] and all(query.teacher for query in splits["train"]):
        scores = [tables.TEACHER_SCORES["positives"], tables.TEACHER_SCORES["negatives"]]
    carried = [name for name in tables.INSTRUCTIONS if f"{name}s" in data.notes]
    sources = count_sources(splits["train"])
    if sources > 1:
        carried.append("source")
    text_of = {}
    examples = ExampleDraw((), config.seed)
    if config.num_examples:
        text_of = {document.id: document.text for document in data.corpus}
        examples = ExampleDraw(splits["train"], config.seed)

    def draw_examples(place: int, query: Query, name: str) -> list[tuple[str, str]]:
        drawn = examples.draw(query, place, config.num_examples, trains=name == "train")
        return [(other.text, text_of[other.positives[0]]) for other in drawn]

    def make_rows(name: str, seen: Sequence[bool]) -> Iterator[dict[str, Any]]:
        for place, query in enumerate(splits[name]):
            row = {**query._asdict(), "seen": seen[place]}
            row |= dict[str, Any](zip(scores, query.teacher or (), strict=False))
            if config.num_examples:
                row["examples"] = draw_examples(place, query, name)
            yield row

    statistics = []
    for name, queries in splits.items():
        if name == "train":
            columns = tables.GROUPED
            seen = [True] * len(queries)
        else:
            columns = tables.HELD_OUT
            seen = find_seen(splits["train"], queries).tolist()
        schema = pa.schema([*columns, *((score, tables.SCORES) for score in scores)])
        schema = tables.add_carried(schema, carried)
        if config.num_examples:
            schema = schema.append(tables.EXAMPLES)
        tables.write_shards(context.out / name, make_rows(name, seen), schema, config.shard_rows)
        statistics.append(_summarize(name, queries, sum(seen)))
    if config.num_examples:
        write_examples(context.out / EXAMPLES, draw_examples(0, Query("", "", (), ()), ""))
    metrics = {
        "documents": len(corpus),
        "queries": len(data.queries),
        **{f"{name}/queries": len(queries) for name, queries in splits.items()},
        **measure_texts(data),
        "sources": sources,
        **data.notes,
    }
    note = describe(data, splits)
    repeated = len(corpus) - len({document.text for document in corpus})
    if repeated:
        metrics["documents with the text of another one"] = repeated
        said = f"{repeated:,} of {len(corpus):,} documents have the text of another one: equal scores rank by id"
        note = "; ".join(filter(None, (note, said)))
    return Result(metrics, {"splits": statistics}, note=note)


def _summarize(name: str, queries: "Sequence[Query]", seen: int) -> dict[str, Any]:
    from ratchet.data.rankings import summarize_counts

    row: dict[str, Any] = {
        "split": name,
        "queries": len(queries),
        "groups": len({query.group for query in queries}),
        "with a label seen in training": seen,
    }
    for key, value in summarize_counts([len(query.positives) for query in queries]).items():
        row[f"relevant, {key}"] = value
    return row


JOB = Job(
    "prepare",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    outputs=list_outputs,
    metrics=(
        "documents",
        "queries",
        "*/queries",
        "queries without *",
        "documents without text",
        "documents with *",
        "labels of documents *",
        "longest_text",
        "characters",
        "sources",
        "tasks",
        "prompts",
    ),
)
