"""Reading and splitting of the data of `prepare`: at plan time to find errors, and again in the job."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.data.formats.columns import parse_options
from ratchet.data.formats.detection import load_retrieval
from ratchet.data.formats.examples import read_example_questions
from ratchet.data.formats.pairs import SAID, read_pools
from ratchet.data.retrieval import RetrievalData
from ratchet.data.retrieval.checks import check_data
from ratchet.data.retrieval.mixtures import unite
from ratchet.data.retrieval.splits import Splits, leave_out_labels, split_queries
from ratchet.data.tables import INSTRUCTIONS
from ratchet.errors import InputError

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.prepare import Config, Inputs


def load_data(config: "Config", inputs: "Inputs", *, sampled: bool = False) -> RetrievalData:
    """Read the data, or example questions if there is none. sampled: read only the first rows of large files. Raises
    DataError for an unusable file."""
    paths = []
    for split, given in (("", inputs.data), ("valid", inputs.valid), ("test", inputs.test)):
        for path in [given] if isinstance(given, Path) else given or ():
            paths.append((path, split))
    if config.reading and len(config.reading) != len(paths):
        raise InputError(
            f"prepare.reading: {len(config.reading)} given for {len(paths)} paths; expected one for each path of data,"
            " valid and test, in this order; '' for none"
        )
    if not paths:
        return check_data(read_example_questions(config.questions), "example questions")
    least = 2 if len(paths) == 1 else 1
    parts = []
    for (path, split), text in zip(paths, config.reading or [""] * len(paths), strict=True):
        read = load_retrieval(path, text, least, sampled=sampled)
        parts.append((str(path), read, split, parse_options(text, str(path))))
    data = unite(parts)
    if inputs.pools and data.share == 1:
        known = [document.text for document in data.corpus]
        data = replace(data, corpus=[*data.corpus, *read_pools(inputs.pools, known)])
    for name in INSTRUCTIONS:
        texts = {getattr(query, name) for query in data.queries} - {""}
        if texts:
            data.notes[f"{name}s"] = len(texts)
    return data


def split_data(data: RetrievalData, config: "Config") -> Splits:
    """Return the queries of train, and of valid and test unless they have a fraction of 0."""
    source = "example questions"
    for query in data.queries:
        if query.where:
            source = query.where.rpartition(":")[0]
            break
    options = {"most": config.max_held_out}
    if data.share != 1:
        # The counts of a sample are multiplied.
        options = {"least_valid": 0, "most": max(1, round(config.max_held_out * data.share))}
    splits = split_queries(
        data.queries,
        config.test_fraction,
        config.validation_fraction,
        config.seed,
        source,
        split_by=config.split_by,
        folds=config.folds,
        fold=config.fold,
        **options,
    )
    train = splits["train"]
    if config.needs_negatives and data.share == 1 and not any(query.negatives for query in train):
        raise InputError(
            f"{source}: no query has a negative; expected some with mining=given, which trains on those of the data;"
            " name their column behind the path as ?negative=NAME, or set mining=each"
        )
    if config.unseen_fraction:
        train = leave_out_labels(train, splits["valid"], config.unseen_fraction)
        if not train:
            raise InputError(
                f"prepare.unseen_fraction: {config.unseen_fraction} given; expected a fraction that leaves queries to"
                " train on; lower it"
            )
    return splits | {"train": train}


def describe(data: RetrievalData, splits: Splits) -> str:
    """Return a note on what may surprise: columns that are not read, and training queries that are test queries too."""
    notes = []
    for name, count in data.notes.items():
        if name.startswith(SAID):
            notes.append(f"{round(count / data.share):,} {name}")
    if data.unread:
        notes.append(f"columns not read: {', '.join(data.unread)}")
    known = {query.text for query in splits.get("test", ())}
    repeated = [query for query in splits["train"] if query.text in known]
    if repeated:
        note = f"{len(repeated):,} of {len(splits['train']):,} training queries have the text of a test query"
        if repeated[0].where:
            note += f", such as {repeated[0].where}"
        notes.append(note)
    return "; ".join(notes)
