"""The data of `prepare` and its splits: read at plan time to find errors, and again by the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.data.formats.detection import load_retrieval
from ratchet.data.retrieval import Document, Query, RetrievalData, check_data, split_queries
from ratchet.examples.misconceptions import RULES, format_query, generate_questions
from ratchet.jobs.retrieval.prepare import Config


def load_data(path: Path | None, questions: int, seed: int) -> RetrievalData:
    """Read the data at `path`, or generate that number of questions. Raises DataError for an unusable file."""
    if path is not None:
        return load_retrieval(path)
    corpus = [Document(rule.id, rule.sentence) for rule in RULES]
    queries = [
        Query(f"{question.id}_{option}", format_query(question, option), (rule,), (1,), group=question.id)
        for question in generate_questions(questions, seed)
        for option, rule in enumerate(question.rules)
        if rule is not None
    ]
    return check_data(RetrievalData(corpus, queries), "generated questions")


def split_data(data: RetrievalData, config: Config) -> dict[str, list[Query]]:
    """Return the queries of train, and of valid and test unless they have a fraction of 0."""
    source = next((query.where.rpartition(":")[0] for query in data.queries if query.where), "generated questions")
    fractions = config.test_fraction, config.validation_fraction
    options: dict[str, Any] = {"split_by": config.split_by, "folds": config.folds, "fold": config.fold}
    return split_queries(data.queries, *fractions, config.seed, source, **options)


def describe_repeated(splits: dict[str, list[Query]]) -> str:
    """Return how many queries of `train` have the text of a test query, or an empty string for none."""
    tested = {query.text for query in splits.get("test", ())}
    if not (repeated := [query for query in splits["train"] if query.text in tested]):
        return ""
    at = f", such as {repeated[0].where}" if repeated[0].where else ""
    return f"{len(repeated):,} of {len(splits['train']):,} training queries have the text of a test query{at}"
