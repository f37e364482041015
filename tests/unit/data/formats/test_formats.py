"""Every format reads, and every mistake in a file is named with its file and line."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from public_data import FOLDER, needs_public_data

from ratchet.data.formats import flag_embedding, trec
from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.data.retrieval.splits import split_queries
from ratchet.data.tables import write_table
from ratchet.errors import DataError
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.jobs.retrieval.splits import load_data

EEDI_HEADER = (
    "QuestionId,ConstructName,CorrectAnswer,QuestionText,AnswerAText,AnswerBText,AnswerCText,AnswerDText,"
    "MisconceptionAId,MisconceptionBId,MisconceptionCId,MisconceptionDId\n"
)


def eedi(folder: Path) -> Path:
    rows = "".join(
        f'{i},Add,A,"What is\n{i}+1?",{i + 1},{i},{i + 2},9,,0.0,1.0,\n' for i in range(20)
    )
    (folder / "train.csv").write_text(EEDI_HEADER + rows)
    (folder / "misconception_mapping.csv").write_text(
        "MisconceptionId,MisconceptionName\n0,Forgets to add\n1,Adds twice\n"
    )
    return folder


def flag(folder: Path) -> Path:
    path = folder / "train.jsonl"
    rows = [
        {"query": f"q {i}", "pos": [f"p {i % 5}"], "neg": [f"p {(i + 1) % 5}"], "prompt": "find"}
        for i in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"d{i}", "title": "t", "text": f"text {i}"}) + "\n" for i in range(5)
        )
    )
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": f"query {i}"}) + "\n" for i in range(20))
    )
    rows = "".join(f"q{i}\td{i % 5}\t{1 + i % 2}\nq{i}\td{(i + 1) % 5}\t0\n" for i in range(20))
    (folder / "qrels" / "all.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


@pytest.mark.parametrize("make", [eedi, flag, beir])
def test_a_format_is_recognised_and_read(make: Callable[[Path], Path], tmp_path: Path) -> None:
    data = load_retrieval(make(tmp_path))
    assert len(data.queries) == (40 if make is eedi else 20)
    assert len(data.corpus) == (2 if make is eedi else 5)
    assert all(query.positives and query.grades for query in data.queries)


@pytest.mark.parametrize("whole_folder", [False, True])
def test_the_texts_of_a_pool_are_documents(tmp_path: Path, whole_folder: bool) -> None:
    path = flag(tmp_path)
    (tmp_path / "candidate_pool.jsonl").write_text(
        '{"text": "a"}\n{"text": "p 1"}\n{"text": "a"}\n'
    )
    values = find_datasets(str(tmp_path if whole_folder else path))
    inputs = Inputs(
        **{name: tuple(source.path for source in values[name]) for name in ("data", "pools")}
    )
    corpus = load_data(Config(), inputs).corpus
    assert sorted(document.text for document in corpus) == ["a", *(f"p {i}" for i in range(5))]
    assert len({document.id for document in corpus}) == 6
    (tmp_path / "candidate_pool.jsonl").write_text('{"text": "a"}\n{"text": " "}\n')
    with pytest.raises(DataError, match=r"candidate_pool\.jsonl:2: text is empty; expected text"):
        load_data(Config(), inputs)


def test_the_texts_of_two_pools_have_ids_of_their_own(tmp_path: Path) -> None:
    places = (tmp_path / "one", tmp_path / "two")
    for place in places:
        place.mkdir()
        text = f'{{"text": "both"}}\n{{"text": "only {place.name}"}}\n'
        (place / "candidate_pool.jsonl").write_text(text)
    values = find_datasets(str(flag(places[0])), test=str(flag(places[1])))
    kinds = ("data", "test", "pools")
    inputs = Inputs(**{name: tuple(source.path for source in values[name]) for name in kinds})
    corpus = load_data(Config(), inputs).corpus
    added = sorted(document.text for document in corpus if document.id.startswith("pool/"))
    assert added == ["both", "only one", "only two"]
    assert len({document.id for document in corpus}) == len(corpus)


def test_eedi_queries_say_question_hint_and_both_answers(tmp_path: Path) -> None:
    query = load_retrieval(eedi(tmp_path)).queries[0]
    assert query.id == "0_B"
    assert query.text == "Question: What is\n0+1?\nHint: Add\nCorrect answer: 1\nWrong answer: 0"
    assert query.positives == ("0",)


def test_eedi_queries_have_the_columns_of_a_template(tmp_path: Path) -> None:
    template = "template={ConstructName}: {WrongAnswerText} for {CorrectAnswerText}"
    query = load_retrieval(eedi(tmp_path), template).queries[0]
    assert query.text == "Add: 0 for 1"
    with pytest.raises(
        DataError, match=r"csv:2: template '\{Hint\}' given; expected some of Quest"
    ):
        load_retrieval(eedi(tmp_path), "template={Hint}")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BROKEN: list[tuple[Callable[[Path], Path], str, Callable[[Path], object], str]] = [
    (
        eedi,
        "no column",
        lambda p: edit(p / "train.csv", "AnswerBText", "Answer2Text"),
        r"train\.csv:1: no column AnswerBText",
    ),
    (
        eedi,
        "unknown label",
        lambda p: edit(p / "train.csv", "0.0", "77.0"),
        r"train\.csv:2: MisconceptionBId is '77'",
    ),
    (
        eedi,
        "a field short",
        lambda p: edit(p / "train.csv", ",9,,0.0", ",9,0.0"),
        r"train\.csv:2: 11 fields; expected 12",
    ),
    (
        eedi,
        "no answer text",
        lambda p: edit(p / "train.csv", ",1,0,2,", ",1,,2,"),
        r"train\.csv:2: AnswerBText is empty",
    ),
    (
        eedi,
        "empty corpus",
        lambda p: (p / "misconception_mapping.csv").write_text(
            "MisconceptionId,MisconceptionName\n"
        ),
        r"MisconceptionBId is '0'; .* has no such id",
    ),
    (
        eedi,
        "no mapping",
        lambda p: (p / "misconception_mapping.csv").unlink(),
        r"train\.csv:2: no column for the query",
    ),
    (
        eedi,
        "not utf-8",
        lambda p: (p / "train.csv").write_bytes((p / "train.csv").read_bytes()[:-9] + b"\xff\n"),
        r"train\.csv:\d+: byte 0xff",
    ),
    (
        flag,
        "no json",
        lambda p: edit(p, '{"query": "q 3"', '{"query": "q 3'),
        r"train\.jsonl:4: not JSON",
    ),
    (
        flag,
        "no object",
        lambda p: edit(
            p, '{"query": "q 0", "pos": ["p 0"], "neg": ["p 1"], "prompt": "find"}', "[1]"
        ),
        r"train\.jsonl:1: not as for texts",
    ),
    (
        flag,
        "no positive",
        lambda p: edit(p, '"pos": ["p 2"]', '"pos": []'),
        r"train\.jsonl:3: positive \[\] given",
    ),
    (
        flag,
        "no query",
        lambda p: edit(p, '"query": "q 1"', '"x": "q 1"'),
        r"train\.jsonl:2: no column for the query",
    ),
    (
        flag,
        "wrong type",
        lambda p: edit(p, '"pos": ["p 1"]', '"pos": 1'),
        r"train\.jsonl:2: positive 1 given; expected a text",
    ),
    (
        flag,
        "uneven scores",
        lambda p: edit(p, '"prompt"', '"pos_scores": [1, 2], "prompt"'),
        r"train\.jsonl:1: .*2 scores for 1 texts",
    ),
    (
        flag,
        "nan score",
        lambda p: edit(p, '"prompt"', '"neg_scores": [NaN], "prompt"'),
        r"train\.jsonl:1: not JSON \(NaN is no finite number\)",
    ),
    (
        flag,
        "scores on one line only",
        lambda p: edit(p, '"prompt"', '"pos_scores": [1], "neg_scores": [0.5], "prompt"'),
        r"train\.jsonl:2: no pos_scores and neg_scores, but .*train\.jsonl:1 has them",
    ),
    (
        flag,
        "positive and negative",
        lambda p: edit(p, '"neg": ["p 1"]', '"neg": ["p 1", "p 0"]'),
        r"train\.jsonl:1: query 'q 0' has 'p 0' as a positive and as a negative",
    ),
    (
        flag,
        "one list scored",
        lambda p: edit(p, '"prompt"', '"pos_scores": [1], "prompt"'),
        r"train\.jsonl:1: field 'neg_scores' has 0 scores for 1 texts",
    ),
    (flag, "empty file", lambda p: p.write_text(""), "the file is empty"),
    (
        beir,
        "no such query",
        lambda p: edit(p / "qrels/all.tsv", "q0\t", "q99\t"),
        r"all\.tsv:2: query 'q99' is not in queries",
    ),
    (
        beir,
        "two fields",
        lambda p: edit(p / "qrels/all.tsv", "q1\td1", "q1 d1"),
        r"all\.tsv:4: .*by tabs",
    ),
    (
        beir,
        "a first row with a decimal",
        lambda p: edit(p / "qrels/all.tsv", "query-id\tcorpus-id\tscore\n", "q0\td0\t1.5\n"),
        r"all\.tsv:1: score '1.5' given; expected a whole number",
    ),
    (
        beir,
        "a first row without a score",
        lambda p: edit(p / "qrels/all.tsv", "query-id\tcorpus-id\tscore\n", "q0\td0\n"),
        r"all\.tsv:1: .*an integer score",
    ),
    (
        beir,
        "empty corpus",
        lambda p: (p / "corpus.jsonl").write_text(""),
        "corpus.jsonl: the file is empty",
    ),
    (beir, "no qrels", lambda p: (p / "qrels/all.tsv").unlink(), "no .tsv file"),
    (
        beir,
        "id twice",
        lambda p: edit(p / "corpus.jsonl", '"d1"', '"d0"'),
        "document id 'd0' is also at",
    ),
]


@pytest.mark.parametrize(
    ("make", "what", "harm", "said"), BROKEN, ids=[f"{b[0].__name__}: {b[1]}" for b in BROKEN]
)
def test_what_is_wrong_is_named(
    make: Callable[[Path], Path],
    what: str,
    harm: Callable[[Path], object],
    said: str,
    tmp_path: Path,
) -> None:
    path = make(tmp_path)
    harm(path)
    with pytest.raises(DataError, match=said):
        load_retrieval(path)


def test_a_path_that_holds_nothing_known_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Eedi.*BEIR.*FlagEmbedding"):
        load_retrieval(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        load_retrieval(tmp_path / "nowhere")


def test_a_question_is_never_torn_apart_and_the_order_is_kept(tmp_path: Path) -> None:
    queries = load_retrieval(eedi(tmp_path)).queries
    sides = split_queries(queries, 0.2, 0.1, seed=42)
    groups = {name: {query.group for query in members} for name, members in sides.items()}
    assert not groups["train"] & groups["test"]
    assert not groups["train"] & groups["valid"]
    assert not groups["valid"] & groups["test"]
    assert sum(map(len, sides.values())) == len(queries)
    assert len(groups["test"]) == 4
    again, other = (split_queries(queries, 0.2, 0.1, seed=seed) for seed in (42, 43))
    assert list(sides["test"]) == list(again["test"])
    assert list(sides["test"]) != list(other["test"])


def test_nanobeir_parquet(tmp_path: Path) -> None:
    plain, nano = beir(tmp_path / "plain"), tmp_path / "nano"
    for name in ("corpus", "queries"):
        rows = [json.loads(line) for line in (plain / f"{name}.jsonl").read_text().splitlines()]
        write_table(nano / name / "train-00000-of-00001.parquet", pa.Table.from_pylist(rows))
    labels = [line.split("\t") for line in (plain / "qrels/all.tsv").read_text().splitlines()[1:]]
    rows = [
        {"query-id": query, "corpus-id": document}
        for query, document, grade in labels
        if grade != "0"
    ]
    write_table(nano / "qrels" / "train-00000-of-00001.parquet", pa.Table.from_pylist(rows))
    found, expected = load_retrieval(nano), load_retrieval(plain)
    assert [(one.id, one.text) for one in found.corpus] == [
        (one.id, one.text) for one in expected.corpus
    ]
    assert {query.id: query.positives for query in found.queries} == {
        q.id: q.positives for q in expected.queries
    }
    assert {query.split for query in found.queries} == {None}
    rows[0]["corpus-id"] = "nosuch"
    write_table(nano / "qrels" / "train-00000-of-00001.parquet", pa.Table.from_pylist(rows))
    found = load_retrieval(nano)
    assert found.notes["labels of documents that are not in the corpus, left out"] == 1


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_queries_of_a_group_stay_together_in_a_beir_folder(tmp_path: Path, kind: str) -> None:
    """Every fourth query has no group. The others are 5 articles, in turn."""
    folder, groups = beir(tmp_path), [f"article {i % 5}" if i % 4 else None for i in range(20)]
    rows = [
        {"_id": f"q{i}", "text": f"query {i}", "group": group} for i, group in enumerate(groups)
    ]
    if kind == "parquet":
        write_table(folder / "queries" / "queries.parquet", pa.Table.from_pylist(rows))
        (folder / "queries.jsonl").unlink()
    else:
        del rows[0]["group"]
        (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = load_retrieval(folder).queries
    assert [query.group for query in queries] == [
        group or f"q{i}" for i, group in enumerate(groups)
    ]
    assert [query.group for query in load_queries(folder)] == [query.group for query in queries]
    sides = split_queries(queries, 0.3, 0.3, seed=3)
    for one, other in itertools.combinations(sides.values(), 2):
        assert not {query.group for query in one} & {query.group for query in other}
    rows[3]["group"] = ["article"]  # type: ignore[assignment]
    shutil.rmtree(folder / "queries", ignore_errors=True)
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        DataError,
        match=r"queries\.jsonl:4: group \['article'\] given; expected a text or a whole number",
    ):
        load_retrieval(folder)


def test_splits_that_a_beir_folder_gives_are_kept(tmp_path: Path) -> None:
    folder = beir(tmp_path)
    (folder / "qrels" / "all.tsv").unlink()
    (folder / "qrels" / "train.tsv").write_text("".join(f"q{i}\td0\t1\n" for i in range(10)))
    (folder / "qrels" / "test.tsv").write_text("".join(f"q{i}\td0\t1\n" for i in range(10, 20)))
    sides = split_queries(load_retrieval(folder).queries, 0.2, 0.1, seed=1)
    assert {query.id for query in sides["test"]} == {f"q{i}" for i in range(10, 20)}
    assert len(sides["valid"]) == 3


def test_the_splits_of_the_hubs_parquet_files_are_kept(tmp_path: Path) -> None:
    folder = beir(tmp_path)
    (folder / "qrels" / "all.tsv").unlink()
    files = {
        "train-00000-of-00002": (0, 12),
        "train-00001-of-00002": (8, 16),
        "test-00000-of-00001": (16, 20),
    }
    for number, (name, (start, stop)) in enumerate(files.items()):
        rows = [
            {"query-id": f"q{i}", "corpus-id": f"d{number}", "score": 1} for i in range(start, stop)
        ]
        write_table(folder / "qrels" / f"{name}.parquet", pa.Table.from_pylist(rows))
    queries = load_retrieval(folder).queries
    assert {q.id: q.split for q in queries} == {
        f"q{i}": "train" if i < 16 else "test" for i in range(20)
    }
    assert next(q.positives for q in queries if q.id == "q9") == ("d0", "d1")
    (folder / "qrels" / "other.parquet").write_bytes(
        (folder / "qrels" / f"{name}.parquet").read_bytes()
    )
    with pytest.raises(DataError, match="query id 'q16' is also at"):
        load_retrieval(folder)


def test_too_little_data_to_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leave none for valid"):
        split_queries(list(load_retrieval(flag(tmp_path)).queries)[:3], 0.2, 0.1, seed=1)


def test_flag_embedding_goes_out_as_it_came_in(tmp_path: Path) -> None:
    scored = {"teacher_positive_scores": [1.5], "teacher_negative_scores": [0.5, -1.0]}
    rows: list[dict[str, Any]] = [
        {
            "text": "q",
            "positives": ["d0"],
            "negatives": ["d1", "d2"],
            **scored,
            "task": "find",
            "prompt": "judge",
        },
        {
            "text": "é\u2028",
            "positives": ["d0"],
            "negatives": [],
            "teacher_positive_scores": [2.0],
            "task": "",
        },
    ]
    text_of = {"d0": "p", "d1": "n", "d2": "m"}
    lines = (
        flag_embedding.make_line(row, lambda names: [text_of[name] for name in names])
        for row in rows
    )
    flag_embedding.write_lines(tmp_path / "x.jsonl", lines)
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().split("\n")[:-1]] == [
        {
            "query": "q",
            "pos": ["p"],
            "neg": ["n", "m"],
            "pos_scores": [1.5],
            "neg_scores": [0.5, -1.0],
        }
        | {"prompt": "find", "reranker_prompt": "judge"},
        {"query": "é\u2028", "pos": ["p"], "neg": [], "pos_scores": [2.0]},
    ]
    back = load_retrieval(tmp_path / "x.jsonl")
    assert {document.id: document.text for document in back.corpus} == text_of
    assert [
        (q.text, q.positives, q.negatives, q.teacher, q.task, q.prompt) for q in back.queries
    ] == [
        ("q", ("d0",), ("d1", "d2"), ((1.5,), (0.5, -1.0)), "find", "judge"),
        ("é\u2028", ("d0",), (), ((2.0,), ()), "", ""),
    ]


def test_repeated_query_lines_are_one_query(tmp_path: Path) -> None:
    lines = [
        {"query": "q", "pos": ["a"], "neg": ["c"], "pos_scores": [3], "neg_scores": [1]},
        {
            "query": "q",
            "pos": ["b", "c"],
            "neg": ["a", "d"],
            "pos_scores": [4, 2],
            "neg_scores": [0, -1],
        },
        {"query": "q", "pos": ["e"], "neg": [], "pos_scores": [5], "prompt": "other"},
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = load_retrieval(tmp_path / "x.jsonl")
    text_of = {document.id: document.text for document in data.corpus}
    named = [
        ([text_of[n] for n in q.positives], [text_of[n] for n in q.negatives], q.teacher)
        for q in data.queries
    ]
    assert named == [(["a", "b", "c"], ["d"], ((3, 4, 2), (-1,))), (["e"], [], ((5,), ()))]


def test_ids_with_white_space_stay_one_field_of_trec_files(tmp_path: Path) -> None:
    names = ["question 1", "question  1", "a\u00a0b\n", "plain%20é"]
    lists, ones = [names] * len(names), [[1] * len(names)] * len(names)
    ranked = pa.table({"id": names, "documents": lists, "scores": ones})
    trec.write_run(tmp_path / "run", ranked, "t")
    trec.write_qrels(
        tmp_path / "qrels", pa.table({"id": names, "positives": lists, "grades": ones})
    )
    for file, size in (("run", 6), ("qrels", 4)):
        rows = [line.split() for line in (tmp_path / file).read_text(encoding="utf-8").splitlines()]
        assert {len(row) for row in rows} == {size}
        assert [unquote(row[2]) for row in rows[:4]] == [*names[:3], "plain é"]
        assert len({(row[0], row[2]) for row in rows}) == 16


@needs_public_data
def test_the_real_eedi_files() -> None:
    data = load_retrieval(FOLDER / "eedi")
    assert len(data.corpus) == 2587
    assert len(data.queries) == 4370
    assert len({row.group for row in data.queries}) <= 1869
    lines = [
        json.loads(line)
        for line in (FOLDER / "eedi" / "hn_mine_input.jsonl").open(encoding="utf-8")
    ]
    assert len(lines) == 4370
    # That file was made with white space trimmed.
    assert {" ".join(query.text.split()) for query in data.queries} == {
        " ".join(line["query"].split()) for line in lines
    }
