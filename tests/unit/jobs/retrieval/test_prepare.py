"""The prepare job on generated questions and on files: what it splits, and that nothing leaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.data import retrieval
from ratchet.data.rankings import summarize_counts, summarize_tokens
from ratchet.data.tables import CORPUS, GROUPED, HELD_OUT, list_shards, read_shards
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval.prepare import Config, Inputs, check, list_outputs, run
from ratchet.orchestrator.job_interface import Context, Result
from ratchet.orchestrator.job_interface.settings import validate

MakeContext = Callable[..., Context]
SPLITS = ("train", "valid", "test")


def made(context: MakeContext, config: Config, inputs: Inputs | None = None) -> tuple[Path, Result]:
    ctx = context()
    check(config, inputs or Inputs(), {})
    return ctx.out, run(ctx, config, inputs or Inputs())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_splits_share_no_question(context: MakeContext) -> None:
    out, result = made(context, Config(questions=120, shard_rows=50))
    corpus = read_shards(out / "corpus")
    assert corpus.schema == CORPUS
    documents = corpus["id"].to_pylist()
    assert len(set(documents)) == len(documents) == result.metrics["documents"]
    groups, texts = {}, {}
    for name in SPLITS:
        table = read_shards(out / name)
        assert table.schema == (GROUPED if name == "train" else HELD_OUT)
        assert table.num_rows == result.metrics[f"{name}/queries"] > 0
        assert all(
            len(p) == len(g) > 0 for p, g in zip(table["positives"], table["grades"], strict=True)
        )
        assert {p for row in table["positives"].to_pylist() for p in row} <= set(documents)
        groups[name] = {query.rpartition("_")[0] for query in table["id"].to_pylist()}
        texts[name] = set(table["text"].to_pylist())
        assert name == "train" or {*table["group"].to_pylist()} == groups[name]
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not groups[one] & groups[other]
        assert not texts[one] & texts[other]
    assert sum(map(len, groups.values())) == 120
    assert len(groups["test"]) == pytest.approx(24, abs=1)
    assert len(groups["valid"]) == pytest.approx(9.6, abs=1)
    assert len(list_shards(out / "train")) == -(-int(result.metrics["train/queries"]) // 50)


def test_unseen_labels_are_held_out_as_often_as_asked(context: MakeContext, tmp_path: Path) -> None:
    plain, before = made(context, Config(questions=120))
    out, result = made(context, Config(questions=120, unseen_fraction=0.5))
    seen = read_shards(out / "valid")["seen"].to_pylist()
    assert sum(seen) <= len(seen) / 2 < sum(read_shards(plain / "valid")["seen"].to_pylist())
    assert contents(out / "test").keys() == contents(plain / "test").keys()
    assert 0 < result.metrics["train/queries"] < before.metrics["train/queries"]
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        "".join(f'{{"query": "question {n}", "pos": ["yes"], "neg": ["no"]}}\n' for n in range(20))
    )
    with pytest.raises(InputError, match="leaves queries to train on"):
        check(Config(unseen_fraction=0.1), Inputs((file,)), {})
    with pytest.raises(InputError, match="validation_fraction=0"):
        check(Config(unseen_fraction=0.5, validation_fraction=0.0), Inputs(), {})


def test_the_seed_decides_every_byte(context: MakeContext) -> None:
    first, _ = made(context, Config(questions=60))
    second, _ = made(context, Config(questions=60))
    other, _ = made(context, Config(questions=60, seed=43))
    assert contents(first) == contents(second)
    assert (
        contents(first)["test/shard-00000.parquet"] != contents(other)["test/shard-00000.parquet"]
    )


def test_a_file_that_is_given_is_what_is_split(tmp_path: Path, context: MakeContext) -> None:
    rows = [
        {"query": f"question {i}", "pos": [f"answer {i}"], "neg": [f"answer {i + 1}"]}
        for i in range(50)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, result = made(context, Config(), Inputs(file))
    assert (result.metrics["queries"], result.metrics["documents"]) == (50, 51)
    corpus = read_shards(out / "corpus")
    text = dict(zip(corpus["id"].to_pylist(), corpus["text"].to_pylist(), strict=True))
    seen = set()
    for name in SPLITS:
        for row in read_shards(out / name).to_pylist():
            number = row["text"].removeprefix("question ")
            assert [text[p] for p in row["positives"]] == [f"answer {number}"]
            assert [text[n] for n in row["negatives"]] == [f"answer {int(number) + 1}"]
            seen.add(number)
    assert seen == {str(i) for i in range(50)}


def test_scores_that_a_file_brings_can_be_learned_from(
    tmp_path: Path, context: MakeContext
) -> None:
    from ratchet.data.triplets import Triplets

    rows = [
        {
            "query": f"question {i}",
            "pos": [f"answer {i}", f"reply {i}", f"answer {i}"],
            "neg": [f"answer {i + 1}"],
            "pos_scores": [i + 0.5, i + 0.25, -9],
            "neg_scores": [-i],
        }
        for i in range(50)
    ]
    file = tmp_path / "scored.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, _ = made(context, Config(), Inputs(file))
    train, corpus = read_shards(out / "train"), read_shards(out / "corpus")
    for row in train.to_pylist():
        i = int(row["text"].removeprefix("question "))
        assert (row["teacher_positive_scores"], row["teacher_negative_scores"]) == (
            [i + 0.5, i + 0.25],
            [-i],
        )
    step = Triplets(train, corpus, batch_size=8, num_negatives=1, teacher=True).batch(0, 0)
    assert step.teacher_Q is not None
    assert len(step.teacher_Q) == 8

    plain, _ = made(context, Config(questions=60))
    assert "teacher_positive_scores" not in read_shards(plain / "train").column_names


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"test_fraction": -0.1}, "test_fraction: -0.1 given"),
        ({"validation_fraction": 1.0}, "validation_fraction: 1.0 given"),
        ({"shard_rows": 0}, "shard_rows: 0 given"),
    ],
)
def test_wrong_settings_are_named(config: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        validate(Config, config, "prepare")


def test_repeated_test_queries_are_counted(tmp_path: Path) -> None:
    texts = ["Where?", "When?", "Who?", "Where?"]
    files = {
        "corpus.jsonl": "".join(
            json.dumps({"_id": f"d{i}", "text": f"text {i}"}) + "\n" for i in range(4)
        ),
        "queries.jsonl": "".join(
            json.dumps({"_id": f"q{i}", "text": text}) + "\n" for i, text in enumerate(texts)
        ),
        "qrels/train.tsv": "q0\td0\t1\nq1\td1\t1\n",
        "qrels/dev.tsv": "q2\td2\t1\n",
        "qrels/test.tsv": "q3\td3\t1\n",
    }
    (tmp_path / "qrels").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    predicted = check(Config(), Inputs(tmp_path), {})
    splits = {"train/queries": 2, "valid/queries": 1, "test/queries": 1}
    sizes = {"documents": 4, "longest_text": 6, "characters": 24, "sources": 1}
    assert predicted.metrics == {**sizes, **splits}
    where = f"{tmp_path / 'qrels/train.tsv'}:1"
    repeated, decided = predicted.note.split("; ")
    assert repeated == f"1 of 2 training queries have the text of a test query, such as {where}"
    assert decided.startswith("valid has few groups of queries (1): a cross-validation")


def test_seen_labels(tmp_path: Path, context: MakeContext) -> None:
    random = np.random.default_rng(0)
    rows = [
        {
            "query": f"question {i}",
            "pos": [f"answer {n}" for n in random.choice(150, 1 + i % 4, replace=False)],
            "neg": [],
        }
        for i in range(80)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, result = made(context, Config(), Inputs(file))
    train = read_shards(out / "train").to_pylist()
    statistics = {str(row["split"]): row for row in result.tables["splits"]}
    for name in ("valid", "test"):
        table = read_shards(out / name).to_pylist()
        expected = [
            any(p in other["positives"] for p in row["positives"] for other in train)
            for row in table
        ]
        assert [row["seen"] for row in table] == expected
        assert statistics[name]["with a label seen in training"] == sum(expected)
        assert name == "valid" or 0 < sum(expected) < len(expected)
    counts = [len(row["positives"]) for row in train]
    found = {
        key: statistics["train"][f"relevant, {key}"]
        for key in ("mean", "std", "P75", "P95", "max", "none")
    }
    at_75, at_95 = np.quantile(counts, 0.75), np.quantile(counts, 0.95)
    expected_numbers = {
        "mean": np.mean(counts),
        "std": np.std(counts),
        "P75": at_75,
        "P95": at_95,
        "max": 4,
        "none": 0,
    }
    assert found == pytest.approx(expected_numbers, abs=1e-4)

    by_document, _ = made(context, Config(split_by="document"), Inputs(write_single(tmp_path)))
    assert not any(read_shards(by_document / "test")["seen"].to_pylist())


def write_single(folder: Path) -> Path:
    """Write queries with one positive each, of which four queries share each."""
    file = folder / "single.jsonl"
    rows = [{"query": f"question {i}", "pos": [f"answer {i % 20}"], "neg": []} for i in range(80)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_folds_hold_every_query_once(tmp_path: Path, context: MakeContext) -> None:
    file = Inputs(write_single(tmp_path))
    tested = [
        read_shards(made(context, Config(folds=4, fold=f), file)[0] / "test")["id"].to_pylist()
        for f in range(4)
    ]
    assert sorted(name for names in tested for name in names) == sorted(f"q{i}" for i in range(80))
    out, result = made(context, Config(test_fraction=0, validation_fraction=0), file)
    assert (
        sorted(path.name for path in out.iterdir())
        == ["corpus", "train"]
        == list(list_outputs(Config(80, "query", 0, 0)))
    )
    assert result.metrics["train/queries"] == 80
    assert "test/queries" not in result.metrics
    with pytest.raises(
        InputError, match=r"prepare\.fold: 2 given; expected less than folds, which is 2"
    ):
        check(Config(folds=2, fold=2), file, {})


def test_metrics_without_queries() -> None:
    assert set(summarize_counts([]).values()) == {0}
    assert summarize_tokens("x", []) == {"tokens of": "x", "mean": 0.0, "P95": 0.0, "max": 0.0}
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    row = summarize_tokens("x", lengths.tolist())
    assert [row["mean"], row["P95"], row["max"]] == np.round(
        [lengths.mean(), np.percentile(lengths, 95), 59], 1
    ).tolist()
    assert summarize_counts([0, 2, 0, 4]) == {
        "mean": 1.5,
        "std": 1.6583,
        "P75": 2.5,
        "P95": 3.7,
        "max": 4,
        "none": 2,
    }


def write_beir(folder: Path, documents: list[dict[str, str]], relevant: str = "d1") -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    queries = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(20)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    labels = "".join(f"q{n}\t{relevant}\t1\n" for n in range(20))
    (folder / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{labels}")
    return folder


DOCUMENTS = [{"_id": f"d{n}", "title": "A title", "text": f"text {'x' * n}"} for n in range(50)]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every corpus be one that is not held in memory."""
    monkeypatch.setattr(retrieval, "LARGE", 0)
    monkeypatch.setattr(retrieval, "SAMPLE", 10)


def write_published(folder: Path, corpus: str, qrels: str) -> Path:
    """Write a BEIR folder as published ones are: with empty documents, ids that are numbers, labels of documents that
    are not there, and in tables scores that are floats."""
    documents = [
        {"_id": n, "title": "" if n % 9 else "A title", "text": "x" * (n % 7)} for n in range(50)
    ]
    queries = [{"_id": n, "text": f"question {n}"} for n in range(20)]
    labels = [{"query-id": n, "corpus-id": 3 * n, "score": 1.0 + n % 2} for n in range(20)]
    labels += [{"query-id": n, "corpus-id": n + 40, "score": 1.0} for n in range(20)]
    for name, suffix, rows in (
        ("corpus", corpus, documents),
        ("queries", corpus, queries),
        ("qrels", qrels, labels),
    ):
        (folder / name).mkdir(parents=True)
        path = folder / name / f"train.{suffix}"
        if name != "qrels" and suffix == "jsonl":
            path = folder / f"{name}.jsonl"
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif suffix == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            path.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("corpus", ["jsonl", "parquet"])
@pytest.mark.parametrize("qrels", ["tsv", "jsonl", "parquet"])
def test_large_corpus_has_the_bytes_of_a_small_one(
    other: bool,
    corpus: str,
    qrels: str,
    context: MakeContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = write_published(tmp_path / "published", corpus, qrels)
    test = (write_beir(tmp_path / "beir", DOCUMENTS),) if other else ()
    inputs, config = Inputs((published,), test=test), Config(shard_rows=8)
    small, before = made(context, config, inputs)
    monkeypatch.setattr(retrieval, "LARGE", 0)
    monkeypatch.setattr(retrieval, "SAMPLE", 10)
    out, result = made(context, config, inputs)
    assert contents(out) == contents(small)
    assert (result.metrics, result.tables, result.note) == (
        before.metrics,
        before.tables,
        before.note,
    )
    assert result.metrics["labels of documents that are not in the corpus, left out"] == 13
    assert result.metrics["documents without text"] == 7
    assert result.metrics["queries"] == (37 if other else 17)
    assert result.metrics["queries without a relevant document, left out"] == 3
    planned = check(config, inputs, {}).metrics
    assert planned["documents"] == pytest.approx(result.metrics["documents"], rel=0.4)
    assert planned["train/queries"] == pytest.approx(result.metrics["train/queries"], abs=4)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("row", "relevant", "message"),
    [
        (
            {"_id": "d3"},
            "d1",
            r"corpus\.jsonl:41: document id 'd3' is also at .*corpus\.jsonl:4; expected unique ids",
        ),
        ({"_id": 7.5}, "d1", r"corpus\.jsonl:41: field '_id' is float; expected str"),
        (
            {},
            "nowhere",
            r"no query has a document of the corpus with a score of 1 or more in qrels",
        ),
    ],
)
def test_all_of_a_large_corpus_is_checked_while_it_is_copied(
    row: dict[str, object], relevant: str, message: str, context: MakeContext, tmp_path: Path
) -> None:
    rows = [{**one, "title": ""} | (row if n == 40 else {}) for n, one in enumerate(DOCUMENTS)]
    inputs = Inputs((write_beir(tmp_path / "beir", rows, relevant),))  # type: ignore[arg-type]
    check(Config(), inputs, {})
    with pytest.raises(DataError, match=message):
        run(context(), Config(), inputs)


@pytest.mark.usefixtures("large")
def test_plan_checks_first_documents(tmp_path: Path) -> None:
    rows = [
        {**one, "title": ""} | ({"_id": "d0"} if n == 4 else {}) for n, one in enumerate(DOCUMENTS)
    ]
    with pytest.raises(DataError, match=r"corpus\.jsonl:5: document id 'd0' is also at"):
        check(Config(), Inputs((write_beir(tmp_path / "beir", rows),)), {})


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["pairs", "flag", "parquet", "csv", "mixture"])
def test_large_files_are_sampled_by_the_plan(
    kind: str, context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"question {n} {'x' * (n % 7)}" for n in range(300)]
    rows = [
        {"query": text, "pos": [f"answer {n // 3}"], "neg": [f"other {n // 4}"]}
        for n, text in enumerate(texts)
    ]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file := tmp_path / "x.parquet")
    elif kind == "csv":
        (file := tmp_path / "x.csv").write_text(
            "query,positive\n"
            + "".join(f'"{text}","answer\n{n // 3}"\n' for n, text in enumerate(texts))
        )
    else:
        plain = [
            row if kind == "flag" else {"query": row["query"], "positive": row["pos"][0]}
            for row in rows
        ]
        (file := tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    files = (file, write_beir(tmp_path / "beir", DOCUMENTS)) if kind == "mixture" else (file,)
    planned = check(Config(), Inputs(files), {}).metrics
    copied = context()
    result = run(copied, Config(), Inputs(files))
    with monkeypatch.context() as patch:
        patch.setattr(retrieval, "LARGE", 1 << 30)
        small, before = made(context, Config(), Inputs(files))
        assert contents(copied.out) == contents(small)
        assert (result.metrics, result.note) == (before.metrics, before.note)
    assert result.metrics["queries"] == (320 if kind == "mixture" else 300)
    assert planned["documents"] == pytest.approx(result.metrics["documents"], rel=1.0)
    for name in SPLITS:
        assert planned[f"{name}/queries"] == pytest.approx(
            result.metrics[f"{name}/queries"], rel=0.5, abs=12
        )
    if kind in ("pairs", "flag"):
        file.write_text(file.read_text() + '{"query": "late", "pos": []}\n')
        check(Config(), Inputs(files), {})
        with pytest.raises(DataError, match=r"x\.jsonl:301: "):
            run(context(), Config(), Inputs(files))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_damaged_large_table_is_named_by_the_plan(suffix: str, tmp_path: Path) -> None:
    table = pa.table(
        {"query": [f"q {n}" for n in range(60)], "positive": [f"p {n}" for n in range(60)]}
    )
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=10)
    assert check(Config(), Inputs(tmp_path), {}).metrics["train/queries"] == pytest.approx(
        120 * 0.72, abs=15
    )
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(
        DataError,
        match=rf"b\.{suffix}: cannot be read .*; expected a complete table; copy the file",
    ):
        check(Config(), Inputs(tmp_path), {})


@pytest.mark.usefixtures("large")
def test_a_large_corpus_can_be_part_of_a_mixture(context: MakeContext, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        "".join(f'{{"query": "other {n}", "pos": ["yes"], "neg": ["no"]}}\n' for n in range(20))
    )
    folders = (write_beir(tmp_path / "beir", DOCUMENTS), pairs)
    assert made(context, Config(), Inputs(folders))[1].metrics["documents"] == 52
