"""Retrieval data sets as inputs of `prepare`: paths, and data sets of the Hugging Face hub."""

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

from ratchet.data.retrieval import LARGE, POOL
from ratchet.errors import DataError, InputError, RatchetError
from ratchet.extras import require_extra
from ratchet.models.model_files import is_hub_reachable
from ratchet.orchestrator.job_interface import Source

HUB = "hf://"
SMALL = 4_000_000
"""Bytes of data that may be few, and are read once more to count them."""
MANY_DOCUMENTS = 1_000_000
MIN_GROUPS = 12
FEW_DOCUMENTS = 5_000
"""Each fold embeds all documents."""


def find_datasets(data: str, valid: str = "", test: str = "") -> dict[str, Any]:
    """Return the inputs of `prepare` and its setting `reading` for the recipe parameters data, valid and test. A file
    candidate_pool.jsonl beside a .jsonl file, or in a folder, is an input too.

    Each is a path, optionally with options behind it (`pairs.parquet?query=title`), or `hf://owner/name?split=train`.
    Commas separate several data sets (in an option, a comma is written as %2C).
    Only `data` is split and trained on. Raises DataError for a hub data set that is not in the cache and cannot be
    downloaded."""
    values: dict[str, Any] = {"data": (), "valid": (), "test": ()}
    pools = {}
    reading = []
    for name, given in (("data", data), ("valid", valid), ("test", test)):
        if given or (name == "data" and not test):
            several = [given] if os.path.exists(os.path.expanduser(given)) else given.split(",")
            for one in several:
                source, options = _find(one, name)
                values[name] += (source,)
                reading.append(options)
                folder = source.path.parent if source.path.suffix == ".jsonl" else source.path
                pool = folder / POOL
                if os.path.isfile(pool):  # unlike Path.is_file, also for a name that is too long
                    pools[pool] = Source(pool)
    values["pools"] = tuple(pools.values())
    values["reading"] = tuple(reading) if any(reading) else ()
    return values


def find_size(datasets: Mapping[str, Any]) -> tuple[Literal["few", "many", "other"], str]:
    """Return `many` for more than a million documents, by an estimate, and `few` for so few queries that a
    cross-validation should evaluate, with what they show. datasets: of `find_datasets`."""
    from ratchet.data.significance import describe_groups
    from ratchet.jobs.retrieval.prepare import FEW_GROUPS, Config, Inputs
    from ratchet.jobs.retrieval.splits import load_data

    paths = {}
    size = 0
    for name in ("data", "valid", "test"):
        paths[name] = tuple(source.path for source in datasets[name])
        for path in paths[name]:
            files = path.rglob("*") if path.is_dir() else [path]
            size += sum(file.stat().st_size for file in files if file.is_file())
    if SMALL < size <= LARGE:
        return "other", ""
    try:
        data = load_data(Config(reading=datasets["reading"]), Inputs(**paths), sampled=True)
    except RatchetError:  # the plan of `prepare` reports it
        return "other", ""
    if data.num_documents > MANY_DOCUMENTS:
        return "many", ""
    groups = {query.group for query in data.queries}
    is_split = any(query.split not in (None, "train") for query in data.queries)
    is_few = MIN_GROUPS <= len(groups) < FEW_GROUPS and len(data.corpus) <= FEW_DOCUMENTS
    if is_few and not is_split and not datasets["valid"] and not datasets["test"]:
        return "few", describe_groups(len(groups))
    return "other", ""


def find_queries(given: str, parameter: str, readings: Sequence[str]) -> dict[str, Any]:
    """Return the input of `prepare_queries` and its setting `reading` for new queries, a path or `hf://owner/name`.

    The options behind the path apply. Unless one of them is query, template or instruction, those of the data apply
    too. readings: options of the data's parts. Raises InputError if their templates or instructions differ."""
    source, own = _find(given, parameter)
    if dict(parse_qsl(own)).keys() & {"query", "template", "instruction"}:
        return {"queries": source, "reading": own}
    known = set()
    for text in readings:
        known.add(
            urlencode([one for one in parse_qsl(text) if one[0] in ("template", "instruction")])
        )
    if len(known) > 1:
        raise InputError(
            f"{parameter}: {given} given, for data sets with several templates or instructions; expected those of the"
            " queries behind the path; add ?template= or ?instruction=, or ?query=NAME for queries without"
        )
    return {"queries": source, "reading": "&".join(text for text in (own, *known) if text)}


def _find(given: str, parameter: str) -> tuple[Source, str]:
    """Return the source and its options, which stand behind the path."""
    path = given
    options = ""
    if not os.path.exists(os.path.expanduser(given)):
        path, _, options = given.partition("?")
    if path.startswith(HUB):
        return _fetch(path.removeprefix(HUB), options, parameter)
    return Source.find(path, parameter), options


def _fetch(name: str, options: str, parameter: str) -> tuple[Source, str]:
    """Return (the Arrow files of a split, the options to read them with). The files come from the cache of the library
    `datasets` if it has them, else from the hub, as with models. So the data stays the same while it is cached."""
    where = f"{parameter}: {HUB}{name}"
    given = dict(parse_qsl(options))
    split = given.get("split", {"data": "train", "valid": "validation"}.get(parameter, parameter))
    config = given.get("config")
    revision = given.get("revision")
    require_extra(f"{where} given", "datasets", "datasets")
    import datasets
    from datasets.packaged_modules.cache.cache import Cache

    datasets.utils.logging.set_verbosity_error()
    cached = {"repo_id": name, "dataset_name": name.rpartition("/")[2], "config_name": config}
    try:
        try:
            builder = Cache(**cached, version="auto", hash="auto")
            if revision not in (None, builder.hash):
                raise ValueError(f"the cache has revision {builder.hash}")
        except ValueError:  # not in the cache
            if not is_hub_reachable():
                raise
            builder = datasets.load_dataset_builder(name, config, revision=revision)
            builder.download_and_prepare()
        cached_files = builder.as_dataset(split=split).cache_files
        files = [Path(file["filename"]) for file in cached_files]
    except Exception as error:  # also of its HTTP library, such as a proxy that refuses
        raise DataError(
            f"{where}: {' '.join(str(error).split())[:300]}; expected a data set with the split '{split}', in the cache"
            " or on the hub; check the name, ?config=, ?split=, the network and its proxy (and HF_TOKEN for gated ones)"
        ) from None
    others = tuple(
        glob.escape(path.name) for path in files[0].parent.iterdir() if path not in files
    )
    kept = []
    for key, value in parse_qsl(options):
        if key not in ("config", "revision", "split"):
            kept.append((key, value))
    source = Source(files[0].parent, label=f"{HUB}{name}, {split}", ignored=others)
    return source, urlencode([*kept, ("split", split)])
