"""prepare: data of any known format, or generated questions -> corpus/, train/, valid/, test/ as Parquet shards.

Where the data brings negatives, and a teacher's scores of all passages (FlagEmbedding's `pos_scores`, `neg_scores`),
`train` has them too, in the columns of `data.tables.SCORED`, and a finetune can begin with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.job import BadInput, Context, Job, Progress, Result

if TYPE_CHECKING:
    from data.retrieval import Query, Retrieval


@dataclass(frozen=True)
class Config:
    questions: int = 800
    """How many multiple-choice questions to generate, where no data is given."""
    test_fraction: float = 0.2
    """Share of the questions that are held out for the final numbers."""
    validation_fraction: float = 0.1
    """Share of the other questions that choose between checkpoints, so that the test split decides nothing."""
    seed: int = 42
    """Of the split, and of the generated questions."""
    shard_rows: int = 4096
    """Rows per shard: the unit of work, and of what a kill can lose."""


@dataclass(frozen=True)
class Inputs:
    data: Path | None = None
    """Eedi CSVs, FlagEmbedding JSONL or a BEIR folder. None: generated questions."""


def check(config: Config, inputs: Inputs) -> None:
    """Reads everything: what is wrong is named with file and line before anything is started."""
    _splits(config, _load(config, inputs))


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa

    from data.tables import CORPUS, QUERIES, SCORED, write_shards

    data = _load(config, inputs)
    splits = _splits(config, data)
    corpus = [{"id": document.id, "text": document.text} for document in data.corpus]
    write_shards(context.out / "corpus", corpus, CORPUS, config.shard_rows)
    beside = [SCORED["positives"], SCORED["negatives"]] if all(query.teacher for query in data.queries) else []
    schema = pa.schema([*QUERIES, *((name, pa.list_(pa.float32())) for name in beside)])
    for name, queries in splits.items():
        rows = [
            {
                "id": query.id,
                "text": query.text,
                "positives": list(query.positives),
                "grades": list(query.grades),
                "negatives": list(query.negatives),
                **dict(zip(beside, query.teacher or (), strict=False)),
            }
            for query in queries
        ]
        write_shards(context.out / name, rows, schema, config.shard_rows)
    context.progress(Progress(len(data.queries), len(data.queries), "queries"))
    counts = {f"{name} queries": len(queries) for name, queries in splits.items()}
    return Result(
        {"documents": len(corpus), "queries": len(data.queries), **counts, **data.notes},
        {"splits": [_statistics(name, queries) for name, queries in splits.items()]},
    )


def _load(config: Config, inputs: Inputs) -> Retrieval:
    for name in ("test_fraction", "validation_fraction"):
        if not 0 < getattr(config, name) < 1:
            raise BadInput(f"prepare.{name}: {getattr(config, name)} given; expected a share between 0 and 1")
    if config.shard_rows < 1:
        raise BadInput(f"prepare.shard_rows: {config.shard_rows} given; expected 1 or more")
    if inputs.data is not None:
        from data.sources import load

        return load(inputs.data)
    return _generated(config)


def _generated(config: Config) -> Retrieval:
    from data.mistakes import RULES, query_text, questions
    from data.retrieval import Document, Query, Retrieval, checked

    corpus = [Document(rule.id, rule.sentence) for rule in RULES]
    queries = [
        Query(f"{question.id}_{option}", query_text(question, option), (rule,), (1,), group=question.id)
        for question in questions(config.questions, config.seed)
        for option, rule in enumerate(question.rules)
        if rule is not None
    ]
    return checked(Retrieval(corpus, queries), "generated questions")


def _splits(config: Config, data: Retrieval) -> dict[str, list[Query]]:
    from data.retrieval import split

    return split(data.queries, config.test_fraction, config.validation_fraction, config.seed)


def _statistics(name: str, queries: list[Query]) -> dict[str, float | int | str]:
    counts = sorted(len(query.positives) for query in queries)
    groups = len({query.group for query in queries})
    at = {share: counts[min(len(counts) - 1, int(share * len(counts)))] for share in (0.5, 0.9)}
    return {
        "split": name,
        "queries": len(queries),
        "groups": groups,
        "relevant, mean": round(sum(counts) / len(counts), 4),
        "relevant, median": at[0.5],
        "relevant, 90%": at[0.9],
        "relevant, most": counts[-1],
    }


JOB = Job("prepare", version=1, config=Config, inputs=Inputs, run=run, check=check)
