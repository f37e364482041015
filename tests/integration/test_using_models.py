"""The page `docs/using-models.md`, command by command, on a run of the quickstart with fewer questions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

# Two runs of the quickstart, and fourteen commands that load a model: five minutes.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "using-models.md"
SMALL = "--set prepare.questions=60 --set finetune_embedder.epochs=2"
Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


def make_environment() -> dict[str, str]:
    """Return the environment of the page's terminals: with the environment's commands on the path."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "RATCHET_"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path}


@pytest.fixture(scope="module")
def shell(folder: Path) -> Shell:
    """Run commands as a user does."""

    def run(text: str) -> str:
        command = ["bash", "-e", "-c", text]
        done = subprocess.run(
            command, cwd=folder, env=make_environment(), capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def said(folder: Path, shell: Shell) -> dict[str, str]:
    """Command, or block of Python, of the page -> what it printed."""
    shown = shell(f"ratchet run quickstart {SMALL}")
    first = re.search(r"best embedder: (\S+):embedder", shown)
    assert first
    assert f"ratchet export {first[1]}:embedder FOLDER" in shown
    found: dict[str, str] = {}

    def fill(text: str) -> str:
        """Return a part of the page with the id of the run, and with fewer questions."""
        text = re.sub(r"\bRUN\b", first[1], text)
        text = text.replace("plan quickstart ", "plan quickstart --set prepare.questions=60 ")
        return re.sub(r'\.epochs": \d', r'\g<0>, "prepare.questions": 60', text)

    for language, block in re.findall(
        r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    ):
        if language == "python":
            (folder / "page.py").write_text(fill(block))
            found[block.splitlines()[0]] = shell("python page.py")
            continue
        for command in re.findall(r"cat > .*?\nEND\n|[^\n]+\n", block, re.DOTALL):
            if command.startswith("vllm serve"):
                assert command.strip() in next(
                    output for name, output in found.items() if name.startswith("ratchet export")
                )
                continue
            found[command.strip()] = shell(fill(command))
    return found


def find(said: dict[str, str], start: str) -> str:
    """Return what the only command that begins so printed."""
    (found,) = (output for command, output in said.items() if command.startswith(start))
    return found


def test_the_models_are_listed(said: dict[str, str]) -> None:
    assert re.search(
        r":embedder \(best\) +embedder +iteration 0 +MAP@25 0\.\d{4} ", said["ratchet models"]
    )
    (one,) = json.loads(said["ratchet models --json"])
    assert (one["kind"], one["base"]) == ("embedder", "sentence-transformers/all-MiniLM-L6-v2")


def test_the_export_is_the_model(said: dict[str, str], folder: Path) -> None:
    assert "# text-embeddings-inference" in find(said, "ratchet export")
    assert find(said, "from sentence_transformers").strip() == "(1, 384)"
    card = (folder / "my-embedder/README.md").read_text()
    assert "license: apache-2.0" in card
    assert "## Lineage" in card
    assert "iter0/finetune" in card


def test_models_are_compared_on_new_data(said: dict[str, str]) -> None:
    output = find(said, "ratchet evaluate")
    header, *rows = output.splitlines()[-5:-1]
    assert "difference of MAP@25" in header
    assert [row.split()[0].rpartition(":")[2] for row in rows] == [
        *("bm25", "sentence-transformers/all-MiniLM-L6-v2", "embedder")
    ]


def test_texts_are_embedded_and_found(said: dict[str, str], folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    documents = (folder / "documents.txt").read_text().splitlines()
    expected = SentenceTransformer(str(folder / "my-embedder"), device="cpu").encode_document(
        documents
    )
    np.testing.assert_allclose(np.load(folder / "vectors/embeddings.npy"), expected, atol=2e-2)
    searches = {
        command: output for command, output in said.items() if command.startswith("ratchet search")
    }
    plain, as_json = searches.values()
    assert "recall@10" in plain
    assert len(re.findall(r"^  [123]  0\.\d{4}  ", plain, re.MULTILINE)) == 3
    found = json.loads(as_json)
    assert found["documents"][0]["text"] == "Squares each term of a sum on its own"


def test_two_runs_are_compared(said: dict[str, str]) -> None:
    planned = find(said, "ratchet plan quickstart --set finetune_embedder")
    assert "setting epochs: 2 -> 1" in planned
    _, _, compared = find(said, "from ratchet import run").rpartition("report: ")
    assert re.search(r"^ +iteration 0 +iteration 0, fused", compared, re.MULTILINE)
    assert re.search(r"^loss +2 epochs +\d.*\n +1 epoch +\d", compared, re.MULTILINE)


def test_a_run_is_used_from_python(said: dict[str, str]) -> None:
    output = find(said, "import ratchet")
    assert "iteration 0" in output
    assert "'negatives'" in output
    assert output.count(":embedder'") == 4, "one for each run on the page, with the first"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (
            "ratchet export RUN my-embedder",
            "my-embedder: exists already; expected a new folder; give another name",
        ),
        ("ratchet export RUN no/such/folder", "is in a folder that does not exist"),
        ("ratchet export RUN:embeder x", "did you mean 'embedder'"),
        (
            "ratchet evaluate bm25 --data nosuch.jsonl",
            "nosuch.jsonl: not found; expected a file or folder",
        ),
        ("ratchet evaluate bm25 bm25 --data new.jsonl", "bm25,bm25 given; expected each once"),
        ("ratchet evaluate bm25", "arguments are required: --data"),
        ("ratchet search nosuch documents.txt", "model 'nosuch': no such folder"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    said: dict[str, str], shell: Shell, command: str, error: str
) -> None:
    run = json.loads(said["ratchet models --json"])[0]["run_id"]
    output = shell(f"{command.replace('RUN', run)} 2>&1 || true")
    assert error in output
    assert len(output.strip().splitlines()) == 1
