"""Which files of a source are part of its digest, and when the digest of a file is cached."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ratchet.data.formats import pairs, papers
from ratchet.errors import InputError
from ratchet.jobs.retrieval import prepare
from ratchet.orchestrator.job_interface import Source, source_digest
from ratchet.orchestrator.job_interface.source_digest import SourceDigests
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.step import step
from ratchet.orchestrator.store import Store


def test_contents_and_names_count_but_nothing_hidden(tmp_path: Path) -> None:
    folder, digests = tmp_path / "data", SourceDigests(tmp_path / "memory.json")
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_text("1")
    (folder / "deep/b.jsonl").write_text("2")
    first = digests.digest(Source(folder))
    for hidden in (".ratchet/runs/1", "deep/.git"):
        (folder / hidden).mkdir(parents=True)
        (folder / hidden / "events.jsonl").write_text("3")
    (folder / ".note").write_text("4")
    assert digests.digest(Source(folder)) == first
    (folder / "deep/b.jsonl").rename(folder / "deep/c.jsonl")
    assert digests.digest(Source(folder)) != first
    with pytest.raises(InputError, match="no file that counts in"):
        digests.digest(Source(folder, ignored=("*.jsonl",)))
    assert digests.digest(Source(folder, ignored=("deep/*",))) != digests.digest(Source(folder))


def test_links_in_sources(tmp_path: Path) -> None:
    folder, elsewhere, digests = (
        tmp_path / "data",
        tmp_path / "elsewhere",
        SourceDigests(tmp_path / "memory.json"),
    )
    for made in (folder, elsewhere):
        made.mkdir()
    (folder / "corpus.jsonl").write_text("1")
    (elsewhere / "test.tsv").write_text("q1\td1\t1")
    (folder / "qrels").symlink_to(elsewhere)
    first = digests.digest(Source(folder))
    (elsewhere / "test.tsv").write_text("q1\td2\t1")
    assert digests.digest(Source(folder)) != first
    (folder / "again").symlink_to(elsewhere)  # twice beside each other is no circle
    digests.digest(Source(folder))
    (elsewhere / "back").symlink_to(folder)
    with pytest.raises(
        InputError, match=r"the link .*qrels/back leads to a folder around it|again/back leads to"
    ):
        digests.digest(Source(folder))
    (elsewhere / "back").unlink()
    (elsewhere / "gone.tsv").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"gone\.tsv leads to .*nothing, which does not exist"):
        digests.digest(Source(folder))


def test_what_is_read_is_what_counts(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for folder in (data / ".cache", elsewhere):
        folder.mkdir(parents=True)
        for name in ("papers.jsonl", "._papers.jsonl", "train.parquet"):
            (folder / name).write_text("{}")
            (data / name).write_text("{}")
    (data / "linked").symlink_to(elsewhere)
    counting = {path for _, path in source_digest.list_files(Source(data))}
    assert set(pairs.list_tables(data, {})) == {
        path for path in counting if path.suffix == ".parquet"
    }
    assert len(pairs.list_tables(data, {})) == 2
    assert papers.find_files(data) == [data / "papers.jsonl"]


def test_copy_of_equal_size_and_time_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_digest, "SETTLING_SECONDS", 0.0)
    file, cache = tmp_path / "data.jsonl", tmp_path / "memory.json"
    file.write_text("one")
    os.utime(file, (1e9, 1e9))
    time.sleep(0.02)
    before = SourceDigests(cache)
    first = before.digest(Source(file))
    before.save()
    assert str(file) in SourceDigests(cache).digests, "the digest is remembered"
    file.write_text("two")  # in place, as `cp -p` and `rsync -t --inplace` write
    os.utime(file, (1e9, 1e9))
    second = SourceDigests(cache).digest(Source(file))
    assert second != first
    (tmp_path / "other").write_text("six")  # renamed into place, as `rsync -t` does
    os.utime(tmp_path / "other", (1e9, 1e9))
    (tmp_path / "other").replace(file)
    assert SourceDigests(cache).digest(Source(file)) not in (first, second)


def test_fresh_digests_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, digests = tmp_path / "data.jsonl", SourceDigests(tmp_path / "memory.json")
    file.write_text("one")
    digests.digest(Source(file))
    assert not digests.digests
    monkeypatch.setattr(time, "time", lambda: file.stat().st_ctime + 2.1)
    digests.digest(Source(file))
    assert list(digests.digests) == [str(file)]


def test_changed_labels_in_a_linked_folder_are_other_steps(tmp_path: Path) -> None:
    folder, labels = tmp_path / "beir", tmp_path / "labels"
    for made in (folder, labels):
        made.mkdir()
    for name in ("corpus", "queries"):
        rows = [{"_id": f"{name[0]}{i}", "title": "", "text": f"text {i}"} for i in range(40)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").symlink_to(labels)

    def fingerprint(shift: int) -> str | None:
        lines = [f"q{i}\tc{(i + shift) % 40}\t1\n" for i in range(40)]
        (labels / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
        prepared = step("prepare", prepare.JOB, data=Source.find(str(folder)))
        return Plan([prepared], Store.open(tmp_path / "store")).steps["prepare"].step_id

    assert fingerprint(0) == fingerprint(0) is not None
    assert fingerprint(0) != fingerprint(1)
