"""A dozen answers, word for word: the other tables compare the place and what was given."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mistakes
import pytest
from mistakes import MODEL, Mistake

PAIRS = "".join(json.dumps({"query": f"q{i}", "pos": [f"p{i}"]}) + "\n" for i in range(40))
PROBLEMS = "".join(
    json.dumps({"question": f"What is {i}?", "answer": f"#### {i}"}) + "\n" for i in range(9)
)


def whole(command: str, sentence: str, **files: str | bytes) -> Mistake:
    """A command and its whole answer. In names of files, two underscores stand for a dot."""
    named = {name.replace("__", "."): content for name, content in files.items()}
    return Mistake(command, command, re.escape(sentence) + r"\Z", {**MODEL, **named})


SENTENCES = [
    whole(
        "plan quikstart",
        "recipe 'quikstart': unknown; expected one of chat, compare, countdown, documents, embed, evaluate, export,"
        " gsm8k, misconceptions, predict, quickstart, retriever, search, squad, theorems; did you mean 'quickstart'?",
    ),
    whole(
        "plan quickstart --learning-rate 1e-4",
        "plan --learning-rate: not an option; expected settings after --set; write --set JOB.learning_rate=1e-4",
    ),
    whole(
        "gc --keep -1",
        "gc --keep: -1: expected a whole number, 0 or more; correct it; `ratchet gc --help` explains them",
    ),
    whole("plan theorems", "recipe theorems: data not given; expected a value; add --set data=..."),
    whole("plan quickstart --set iterations=-1", "--set iterations=-1: '-1' given; expected >= 0"),
    whole(
        "plan retriever --set data=pairs.jsonl",
        "pairs.jsonl:41: no column for the positive; found 'query, answr'; expected positive or pos or answer or"
        " document or positives; rename one, or name it behind the path as '?query=query&positive=answr'",
        pairs__jsonl=PAIRS + '{"query": "q", "answr": "a"}\n',
    ),
    whole(
        "plan retriever --set data=pairs.jsonl --set base=base/config.json",
        "model base/config.json: this is a file; expected a Hugging Face model folder; give the folder",
        pairs__jsonl=PAIRS,
    ),
    whole(
        "plan gsm8k --set data=g.jsonl --set base=base",
        "model base: this is an encoder (BertModel); expected a decoder (causal LM), such as Qwen2ForCausalLM; give"
        " another model",
        g__jsonl=PROBLEMS,
    ),
    whole(
        "plan own.py",
        "own.py:4: Row 'a', column 'q': 3 given; expected step.metric(\"name\")",
        own__py="from ratchet.orchestrator.step import Row, Summary\n\ndef own():\n"
        "    return Summary([Row('a', {'q': 3})])\n",
    ),
    whole(
        "sweep quickstart --space space.yaml --metric map@25",
        "space.yaml:1: uniform(1, 3) given, which draws fractions; expected whole numbers for finetune_embedder.epochs;"
        " write randint(1, 3)",
        space__yaml="finetune_embedder.epochs: uniform(1, 3)\n",
    ),
    whole(
        "status --store nowhere",
        "store nowhere: no store there; expected a folder or URL that `ratchet run` has created, with a file FORMAT;"
        " check --store",
    ),
    whole(
        "plan gsm8k --set data=g.jsonl --set test=g.jsonl --set base=base",
        "g.jsonl: given as data and as test; expected test rows that are not trained on; give the test file, or leave"
        " test out to hold out a part of data",
        g__jsonl=PROBLEMS,
    ),
]


@mistakes.parametrize(SENTENCES)
def test_the_whole_sentence(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mistakes.check(mistake, tmp_path, monkeypatch, capsys)
