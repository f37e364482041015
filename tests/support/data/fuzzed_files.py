"""Damaged files for fuzzing readers: a valid file of each format, and mutations of its bytes and of its structure."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from hypothesis import strategies as st

from ratchet.data.formats import eedi, papers
from ratchet.data.formats.columns import COLUMNS
from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.data.retrieval import Document, Query
from ratchet.data.tasks import get_task, read_samples
from ratchet.errors import InputError
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.orchestrator.recipe import read_lines
from ratchet.orchestrator.sweeps.space import Space

SECONDS = 30
"""Limit of one file. Valid files take milliseconds."""

VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 10**30, "", " ", "a", "\ud800", "\0", "\u2028",
    "\ufeff", "d0", "q0", "#### 7", [], [[]], ["a"], [None], [1], {}, {"a": 1}, "x" * 3000, [[[[[[[[1]]]]]]]],
)  # fmt: skip
"""Values that replace a value of a JSON file."""

TOKENS: Sequence[bytes] = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n", b'"', b"'", b",", b"\t", b"\\", b"{", b"}", b"[", b"]",
    b":",
    b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 3000, b"{\"a\":" * 3000, b"\\ud800", b"\\udc00\\ud800", b"null",
    b"\xed\xa0\x80", b"\xc3", b"\xc2\xa0", b"\x85", b"\x1c", b"#### ", b"(" * 300, b"-", b"&a", b"*a",
    b"!!python/object:x",
    b"loguniform(", b"<<", b"%",
)  # fmt: skip
"""Bytes that are inserted."""

Mutation = tuple[int, int, int]
mutations: st.SearchStrategy[list[Mutation]] = st.lists(
    st.tuples(st.integers(0, 13), st.integers(0, 65_535), st.integers(0, 65_535)),
    min_size=1,
    max_size=4,
)
"""(kind, where, what) of each change to a file."""


@dataclass(frozen=True)
class Format:
    files: dict[str, bytes]
    """Relative path -> valid content."""
    read: Callable[[Path], list[Any]]
    compare: Callable[[Path, list[Any]], None] = lambda folder, rows: None
    """Read an accepted file with another reader. Raises if that one refuses it or finds other rows."""


def mutate(content: bytes, changes: Iterable[Mutation]) -> bytes:
    for kind, where, what in changes:
        content = _mutate(content, kind, where, what)
    return content


def _mutate(content: bytes, kind: int, where: int, what: int) -> bytes:
    at = where % (len(content) + 1)
    if kind == 0:
        return content[:at] + TOKENS[what % len(TOKENS)] + content[at:]
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + content[at + 1 + what % 20 :]
    if kind == 3:
        return content[:at] + bytes([what % 256]) + content[at + 1 :]
    if kind == 4:
        return content[:at] + content[at : at + 1 + what % 200] + content[at:]
    if kind == 5:
        whole = content.decode("utf-8", "replace")
        return (
            b"",
            b"\n \n",
            whole.encode("utf-16"),
            whole.encode("utf-32"),
            whole.encode("utf-16-le"),
        )[what % 5]
    lines = content.split(b"\n")
    line = where % len(lines)
    if kind == 6:
        return b"\n".join([*lines[:line], *lines[line + 1 :]])
    if kind == 7:
        return b"\n".join([*lines[:line], lines[what % len(lines)], *lines[line:]])
    if kind == 8:
        return content.replace(b"\n", b"\r\n")
    if kind == 9:
        separator = (b"\t", b",", b'"', b": ")[what % 4]
        fields = lines[line].split(separator)
        fields[what % len(fields)] = TOKENS[(what >> 3) % len(TOKENS)] if what % 2 else b""
        return b"\n".join([*lines[:line], separator.join(fields), *lines[line + 1 :]])
    try:
        value = json.loads(lines[line])
        lines[line] = json.dumps(
            _replace(value, what, VALUES[(where + what) % len(VALUES)], kind == 10)
        ).encode()
    except (ValueError, RecursionError):
        return (
            content[:at]
            + bytes([(content[at] if at < len(content) else 0) ^ (1 << what % 8)])
            + content[at + 1 :]
        )
    return b"\n".join(lines)


def _replace(value: Any, path: int, new: Any, remove: bool) -> Any:
    """Replace or remove the value that the digits of `path` lead to."""
    if not isinstance(value, dict | list) or not value or path % 5 == 4:
        return new
    key = list(value)[path // 5 % len(value)] if isinstance(value, dict) else path // 5 % len(value)
    if remove and path % 5 == 3:
        del value[key]
    else:
        value[key] = _replace(value[key], path // 7, new, remove)
    return value


def check_reader(form: Format, file: int, changes: Iterable[Mutation]) -> bool:
    """Mutate one file of a format and read it. Return whether it was accepted.

    It is either read, and then another reader finds the same rows, or refused with an InputError in one line that names
    the file.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mutated = sorted(form.files)[file % len(form.files)]
        for path, content in form.files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(mutate(content, changes) if path == mutated else content)
        signal.signal(signal.SIGALRM, _give_up)
        signal.alarm(SECONDS)
        try:
            rows = form.read(folder)
        except InputError as error:
            said = str(error)
            assert said.startswith(f"{folder}"), said
            assert "\n" not in said, said
            assert ";" in said, said
            assert len(said) < 1500, said
            return False
        finally:
            signal.alarm(0)
        assert rows
        form.compare(folder, rows)
        return True


def _give_up(*_: Any) -> None:
    raise AssertionError(f"read for more than {SECONDS} s")


def _write_lines(rows: Iterable[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _read_content(path: Path) -> bytes:
    return path.read_bytes().removeprefix(b"\xef\xbb\xbf")


def _read_with_arrow(source: Path | bytes, **columns: pa.DataType) -> list[dict[str, Any]]:
    """Read the columns of JSON lines with Arrow."""
    content = source if isinstance(source, bytes) else _read_content(source)
    options = pa.json.ParseOptions(
        pa.schema(list(columns.items())), unexpected_field_behavior="ignore"
    )
    rows: list[dict[str, Any]] = pa.json.read_json(
        io.BytesIO(content), pa.json.ReadOptions(use_threads=False, block_size=2**24), options
    ).to_pylist()
    return rows


def _split_lines(path: Path) -> list[bytes]:
    return [line for line in _read_content(path).split(b"\n") if line.strip()]


def _read_texts(line: bytes, *names: str) -> tuple[str, ...]:
    """Read the first of the columns that a JSON line has, a text or a list of texts, with Arrow."""
    for name, kind in itertools.product(names, (TEXTS, TEXT)):
        with contextlib.suppress(pa.ArrowInvalid):
            if own := _read_with_arrow(line, **{name: kind})[0][name]:
                return tuple(own) if kind == TEXTS else (own,)
    return ()


TEXT, TEXTS, SCORES = pa.string(), pa.list_(pa.string()), pa.list_(pa.float64())


def _compare_flag(folder: Path, rows: list[Any]) -> None:
    lines = _split_lines(folder / "train.jsonl")
    assert all(_read_with_arrow(line, pos_scores=SCORES, neg_scores=SCORES) for line in lines)
    expected: dict[
        tuple[str, ...], tuple[dict[str, None], ...]
    ] = {}  # lines that repeat a query are one query
    for line in lines:
        texts_of = expected.setdefault(_read_texts(line, "query"), ({}, {}))
        for own, name in zip(texts_of, ("pos", "neg"), strict=True):
            own.update(dict.fromkeys(_read_texts(line, name)))
    text_of = {row.id: row.text for row in rows if isinstance(row, Document)}
    queries = [row for row in rows if isinstance(row, Query)]
    found = {
        (q.text,): [[text_of[n] for n in names] for names in (q.positives, q.negatives)]
        for q in queries
    }
    assert found == {
        query: [list(right), [text for text in wrong if text not in right]]
        for query, (right, wrong) in expected.items()
    }


def _load_retrieval(path: Path) -> list[Any]:
    data = load_retrieval(path)
    return [*data.corpus, *data.queries]


def _compare_beir(folder: Path, rows: list[Any]) -> None:
    """Ids may be whole numbers."""
    corpus = _read_with_arrow(folder / "corpus.jsonl", text=TEXT, title=TEXT)
    assert [f"{other['title'] or ''}\n{other['text']}".strip() for other in corpus] == [
        row.text for row in rows if hasattr(row, "text") and not hasattr(row, "positives")
    ]
    queries = {}
    for line in _split_lines(folder / "queries.jsonl"):
        (name,) = _read_texts(line, "_id") or (
            str(_read_with_arrow(line, _id=pa.int64())[0]["_id"]),
        )
        (other,) = _read_with_arrow(line, text=TEXT)
        queries[name] = other["text"]
    assert all(queries[row.id] == row.text for row in rows if hasattr(row, "positives"))


def _compare_csv(folder: Path, rows: list[Any]) -> None:
    content = (folder / eedi.MAPPING).read_bytes()
    convert = pa.csv.ConvertOptions(
        column_types={"MisconceptionId": TEXT, "MisconceptionName": TEXT}, strings_can_be_null=False
    )
    others = pa.csv.read_csv(
        io.BytesIO(content),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=convert,
    ).to_pylist()
    assert [(row.id, row.text) for row in rows if not hasattr(row, "positives")] == [
        (other["MisconceptionId"], other["MisconceptionName"]) for other in others
    ]


def _compare_countdown(folder: Path, rows: list[Any]) -> None:
    """The same rows in the other format of the task are the same samples."""
    columns = {"nums": pa.list_(pa.int64()), "target": pa.int64(), "solution": TEXT}
    others = _read_with_arrow(folder / "tasks.jsonl", **columns)
    pq.write_table(
        pa.Table.from_pylist(others, pa.schema(list(columns.items()))), folder / "tasks.parquet"
    )
    again = list(read_samples(get_task("countdown"), folder / "tasks.parquet"))
    assert [(row.turns, row.gold) for row in again] == [(row.turns, row.gold) for row in rows]


def _compare_gsm8k(folder: Path, rows: list[Any]) -> None:
    others = _read_with_arrow(folder / "tasks.jsonl", question=TEXT, answer=TEXT)
    assert [other["question"] for other in others] == [
        row.turns[0][0].partition("\n\n")[2] for row in rows
    ]


def _compare_papers(folder: Path, rows: list[Any]) -> None:
    others = _read_with_arrow(folder / "papers.jsonl", lemmas=TEXTS, theorems=TEXTS)
    assert [len(row.statements) + row.empty + row.repeated for row in rows] == [
        len(other["lemmas"] or []) + len(other["theorems"] or []) for other in others
    ]


def _compare_pairs(folder: Path, rows: list[Any]) -> None:
    texts = {row.id: row.text for row in rows if not hasattr(row, "positives")}
    found = {
        (row.text, texts[name])
        for row in rows
        if hasattr(row, "positives")
        for name in row.positives
    }
    assert found == {
        (*_read_texts(line, *COLUMNS["query"]), text)
        for line in _split_lines(folder / "pairs.jsonl")
        for text in _read_texts(line, *COLUMNS["positive"])
    }


def _make_parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


PAIRS = [{"anchor": f"q {i}", "positive": f"p {i}", "negative": f"p {i + 1}"} for i in range(6)]
CSV = b"id,question,answer\n" + b"".join(b'%d,"What, is\n%d?",%d\n' % (i, i, i) for i in range(6))
COUNTDOWN = [{"nums": [1, 2, i], "target": 3 + i, "solution": f"1 + 2 + {i}"} for i in range(3, 9)]
SQUAD = [
    {
        "context": f"Rome is the capital of Italy{n}.",
        "qas": [
            {"id": f"{n}{q}", "question": f"What {q}?", "answers": [{"text": "Rome"}]}
            for q in range(2)
        ],
    }
    for n in range(3)
]
EEDI = (
    ",".join((*eedi.QUESTION, *eedi.LABELS))
    + "\n"
    + "".join(f'{i},Add,A,"What, is\n{i}+1?",{i + 1},{i},{i + 2},9,,0.0,1.0,\n' for i in range(6))
)
YAML = b"iterations: 2\nmine.window: 2,100\nsft.learning_rate: loguniform(1e-5, 1e-3)\nsft.epochs: 'choice(1, 2)'\n"

FORMATS: dict[str, Format] = {
    "beir": Format(
        {
            "corpus.jsonl": _write_lines(
                {"_id": f"d{i}", "title": "t", "text": f"text {i}"} for i in range(5)
            ),
            "queries.jsonl": _write_lines({"_id": f"q{i}", "text": f"query {i}"} for i in range(8)),
            "qrels/train.tsv": b"query-id\tcorpus-id\tscore\n"
            + b"".join(b"q%d\td%d\t%d\n" % (i, j, j - i + 1) for i in range(5) for j in range(3)),
            "qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq6\td1\t1\nq7\td2\t1\n",
        },
        _load_retrieval,
        _compare_beir,
    ),
    "eedi": Format(
        {
            "train.csv": EEDI.encode(),
            eedi.MAPPING: b'MisconceptionId,MisconceptionName\n0,Forgets to add\n1,"Adds, twice"\n2,Adds\n',
        },
        _load_retrieval,
        _compare_csv,
    ),
    "flag_embedding": Format(
        {
            "train.jsonl": _write_lines(
                {
                    "query": f"q {i}",
                    "pos": [f"p {i}"],
                    "neg": ["n", "m"],
                    "pos_scores": [1.5],
                    "neg_scores": [0.5, -1],
                }
                for i in range(6)
            )
        },
        lambda folder: _load_retrieval(folder / "train.jsonl"),
        _compare_flag,
    ),
    "papers": Format(
        {
            "papers.jsonl": _write_lines(
                {"arxiv_id": f"p{i}", "lemmas": ["one", "two"], "theorems": ["é", " "]}
                for i in range(4)
            )
        },
        lambda folder: list(papers.read_papers(folder)),
        _compare_papers,
    ),
    "gsm8k": Format(
        {
            "tasks.jsonl": _write_lines(
                {"question": f"What is {i}?", "answer": f"<<1>>So {i}\n#### {i}"} for i in range(6)
            )
        },
        lambda folder: list(read_samples(get_task("gsm8k"), folder / "tasks.jsonl")),
        _compare_gsm8k,
    ),
    "squad": Format(
        {"squad.json": json.dumps({"data": [{"title": "t", "paragraphs": SQUAD}]}).encode()},
        lambda folder: list(read_samples(get_task("squad-batch"), folder / "squad.json")) or [None],
    ),
    "countdown": Format(
        {"tasks.jsonl": _write_lines(COUNTDOWN)},
        lambda folder: list(read_samples(get_task("countdown"), folder / "tasks.jsonl")),
        _compare_countdown,
    ),
    "countdown_parquet": Format(
        {"tasks.parquet": _make_parquet(COUNTDOWN)},
        lambda folder: list(read_samples(get_task("countdown"), folder / "tasks.parquet")),
    ),
    "pairs": Format(
        {"pairs.jsonl": _write_lines(PAIRS)},
        lambda folder: _load_retrieval(folder / "pairs.jsonl"),
        _compare_pairs,
    ),
    "pairs_csv": Format({"pairs.csv": CSV}, lambda folder: _load_retrieval(folder / "pairs.csv")),
    "pairs_parquet": Format(
        {"pairs.parquet": _make_parquet(PAIRS)},
        lambda folder: _load_retrieval(folder / "pairs.parquet"),
    ),
    "queries": Format(
        {"queries.csv": CSV}, lambda folder: list(load_queries(folder / "queries.csv"))
    ),
    "datasets": Format(
        {
            "list.yaml": b"- data: a.jsonl?query=x\n  weight: 0.5\n- data: b\n  task: 'find: it'\n  name: b\n"
        },
        lambda folder: find_datasets(str(folder / "list.yaml"))["data"],
    ),
    "settings": Format(
        {"settings.yaml": YAML}, lambda folder: read_lines(folder / "settings.yaml") or [None]
    ),
    "space": Format({"space.yaml": YAML}, lambda folder: [Space.read(folder / "space.yaml")]),
}
"""Every format of a file that users give."""
