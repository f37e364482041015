"""The data of `prepare` and its splits: read at plan time to find errors, and again by the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.data.formats.detection import load_retrieval
from ratchet.data.formats.pairs import parse_options
from ratchet.data.mixtures import unite, weigh
from ratchet.data.retrieval import Document, Query, RetrievalData, check_data, leave_out_labels, split_queries
from ratchet.data.tables import INSTRUCTIONS
from ratchet.errors import InputError
from ratchet.examples.misconceptions import RULES, format_query, generate_questions
from ratchet.jobs.retrieval.prepare import Config, Inputs


def load_data(config: Config, inputs: Inputs) -> RetrievalData:
    """Read the data, or generate questions where none are given. Raises DataError for an unusable file."""
    found = []
    for split, given in (("", inputs.data), ("valid", inputs.valid), ("test", inputs.test)):
        found += [(path, split) for path in ([given] if isinstance(given, Path) else given or ())]
    if config.reading and len(config.reading) != len(found):
        raise InputError(
            f"prepare.reading: {len(config.reading)} given for {len(found)} paths; expected one for each path of data,"
            " valid and test, in this order; '' for none"
        )
    parts = [
        (str(path), load_retrieval(path, text, 1 if len(found) > 1 else 2), split, parse_options(text, str(path)))
        for (path, split), text in zip(found, config.reading or [""] * len(found), strict=True)
    ]
    if parts:
        data = unite(parts)
        for name in INSTRUCTIONS:
            if texts := {getattr(query, name) for query in data.queries} - {""}:
                data.notes[f"{name}s"] = len(texts)
        return data
    corpus = [Document(rule.id, rule.sentence) for rule in RULES]
    queries = [
        Query(f"{question.id}_{option}", format_query(question, option), (rule,), (1,), group=question.id)
        for question in generate_questions(config.questions, config.seed)
        for option, rule in enumerate(question.rules)
        if rule is not None
    ]
    return check_data(RetrievalData(corpus, queries), "generated questions")


def split_data(data: RetrievalData, config: Config) -> dict[str, list[Query]]:
    """Return the queries of train, and of valid and test unless they have a fraction of 0."""
    source = next((query.where.rpartition(":")[0] for query in data.queries if query.where), "generated questions")
    fractions = config.test_fraction, config.validation_fraction
    options: dict[str, Any] = {"split_by": config.split_by, "folds": config.folds, "fold": config.fold}
    splits = split_queries(data.queries, *fractions, config.seed, source, **options)
    train = splits["train"]
    if config.unseen_fraction:
        train = leave_out_labels(train, splits["valid"], config.unseen_fraction)
        if not train:
            raise InputError(
                f"prepare.unseen_fraction: {config.unseen_fraction} given; expected a fraction that leaves queries to"
                " train on; lower it"
            )
    return splits | {"train": weigh(train, data.weights, config.seed)}


def describe_repeated(splits: dict[str, list[Query]]) -> str:
    """Return how many queries of `train` have the text of a test query, or an empty string for none."""
    tested = {query.text for query in splits.get("test", ())}
    if not (repeated := [query for query in splits["train"] if query.text in tested]):
        return ""
    at = f", such as {repeated[0].where}" if repeated[0].where else ""
    return f"{len(repeated):,} of {len(splits['train']):,} training queries have the text of a test query{at}"
