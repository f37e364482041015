"""Labels of entailment, which are 0 in GLUE's RTE and QNLI."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from ratchet.data.formats.detection import load_retrieval

PAIRS = [("cats", "a cat sleeps", 0), ("cats", "no dog barks", 1), ("dogs", "a dog barks", 0)]
EXPECTED = {"cats": (["a cat sleeps"], ["no dog barks"]), "dogs": (["a dog barks"], [])}


def read(path: Path) -> dict[str, tuple[list[str], list[str]]]:
    data = load_retrieval(path, "", 2)
    text_of = {document.id: document.text for document in data.corpus}
    found = {}
    for query in data.queries:
        positives = [text_of[name] for name in query.positives]
        found[query.text] = (positives, [text_of[name] for name in query.negatives])
    return found


@pytest.mark.parametrize("text", [False, True])
def test_qnli_is_known_by_its_columns(tmp_path: Path, text: bool) -> None:
    names = ["entailment", "not_entailment"]
    lines = []
    for number, (question, sentence, label) in enumerate(PAIRS):
        row = {"question": question, "sentence": sentence, "label": names[label] if text else label}
        lines.append(json.dumps({**row, "idx": number}))
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(lines))
    assert read(file) == EXPECTED


def write_classes(file: Path, names: list[str], labels: list[int]) -> Path:
    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": datasets.ClassLabel(names=names),
        }
    )
    rows = []
    for (first, second, _), label in zip(PAIRS, labels, strict=True):
        rows.append({"sentence1": first, "sentence2": second, "label": label})
    datasets.Dataset.from_list(rows, features).to_parquet(str(file))
    return file


def test_rte_is_known_by_the_names_of_its_classes(tmp_path: Path) -> None:
    names = ["entailment", "not_entailment"]
    assert read(write_classes(tmp_path / "rte.parquet", names, [0, 1, 0])) == EXPECTED
    # MRPC has the same columns, and 1 for a pair.
    names = ["not_equivalent", "equivalent"]
    assert read(write_classes(tmp_path / "mrpc.parquet", names, [1, 0, 1])) == EXPECTED


def test_tables_without_features_are_read_by_their_numbers(tmp_path: Path) -> None:
    rows = [{"sentence1": a, "sentence2": b, "label": 1 - label} for a, b, label in PAIRS]
    file = tmp_path / "pairs.parquet"
    pa.parquet.write_table(pa.Table.from_pylist(rows), file)
    assert read(file) == EXPECTED
