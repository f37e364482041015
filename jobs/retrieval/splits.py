"""Reading and splitting of the data of `prepare`: at plan time to find errors, and again in the job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.data.formats.detection import load_retrieval
from ratchet.data.formats.example_questions import read_example_questions
from ratchet.data.formats.pairs import parse_options
from ratchet.data.retrieval import RetrievalData
from ratchet.data.retrieval.checks import check_data
from ratchet.data.retrieval.mixtures import unite, weigh
from ratchet.data.retrieval.splits import Splits, leave_out_labels, split_queries
from ratchet.data.significance import MIN_VALID_GROUPS
from ratchet.data.tables import INSTRUCTIONS
from ratchet.errors import InputError

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.prepare import Config, Inputs


def load_data(config: Config, inputs: Inputs, *, sampled: bool = False) -> RetrievalData:
    """Read the data, or example questions if there is none. sampled: read only the first rows of large files. Raises
    DataError for an unusable file."""
    given = (("", inputs.data), ("valid", inputs.valid), ("test", inputs.test))
    found = []
    for split, own in given:
        for path in [own] if isinstance(own, Path) else own or ():
            found.append((path, split))
    if config.reading and len(config.reading) != len(found):
        raise InputError(
            f"prepare.reading: {len(config.reading)} given for {len(found)} paths; expected one for each path of data,"
            " valid and test, in this order; '' for none"
        )
    if len(found) > 1:
        least = 1
    else:
        least = 2
    parts = []
    for (path, split), text in zip(found, config.reading or [""] * len(found), strict=True):
        parts.append(
            (
                str(path),
                load_retrieval(path, text, least, sampled=sampled),
                split,
                parse_options(text, str(path)),
            )
        )
    if parts:
        data = unite(parts)
        instructions = set()
        for query in data.queries:
            instructions.add((query.task, query.prompt))
        for number, name in enumerate(INSTRUCTIONS):
            texts = {one[number] for one in instructions} - {""}
            if texts:
                data.notes[f"{name}s"] = len(texts)
        return data
    return check_data(read_example_questions(config.questions), "example questions")


def split_data(data: RetrievalData, config: Config) -> Splits:
    """Return the queries of train, and of valid and test unless they have a fraction of 0."""
    source = next(
        (query.where.rpartition(":")[0] for query in data.queries if query.where),
        "example questions",
    )
    fractions = config.test_fraction, config.validation_fraction
    options: dict[str, Any] = {
        "split_by": config.split_by,
        "folds": config.folds,
        "fold": config.fold,
    }
    if data.share != 1:
        options["least_valid"] = 0  # the counts of a sample are multiplied
    splits = split_queries(data.queries, *fractions, config.seed, source, **options)
    train = splits["train"]
    if config.needs_negatives and data.share == 1 and not any(query.negatives for query in train):
        raise InputError(
            f"{source}: no query has a negative; expected some with mining=given, which trains on those of the data;"
            " name their column behind the path as ?negative=NAME, or set mining=each"
        )
    if config.unseen_fraction:
        train = leave_out_labels(train, splits["valid"], config.unseen_fraction)
    if not train and config.unseen_fraction:
        raise InputError(
            f"prepare.unseen_fraction: {config.unseen_fraction} given; expected a fraction that leaves queries to"
            " train on; lower it"
        )
    return splits | {"train": weigh(train, data.weights, config.seed) if data.weights else train}


def describe_decision(splits: Splits) -> str:
    """Return a note on a valid split that is too small to decide what is kept; an empty string for others."""
    groups = len({query.group for query in splits.get("valid", ())})
    if not 0 < groups < MIN_VALID_GROUPS:
        return ""
    decides = "a cross-validation of the training queries decides what is kept"
    return f"valid has few groups of queries ({groups}): {decides}"


def describe_unread(data: RetrievalData) -> str:
    """Return a note on the columns that are not read; an empty string if there are none."""
    if data.unread:
        return f"columns not read: {', '.join(data.unread)}"
    return ""


def describe_repeated(splits: Splits) -> str:
    """Return a note on the training queries that have the text of a test query; an empty string if there are none."""
    known = {query.text for query in splits.get("test", ())}
    repeated = []
    for query in splits["train"]:
        if query.text in known:
            repeated.append(query)
    if not repeated:
        return ""
    where = repeated[0].where
    if where:
        at = f", such as {where}"
    else:
        at = ""
    return f"{len(repeated):,} of {len(splits['train']):,} training queries have the text of a test query{at}"
