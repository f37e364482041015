"""Small stand-ins for the models and the data of the published runs, in the same formats."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ratchet

FOLDER = Path(ratchet.__file__).parent / "recipes/published"
RUNS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SHAPES = {
    "Qwen/Qwen2.5-14B-Instruct": "14B",
    "Qwen/Qwen2.5-Math-7B-Instruct": "7B",
    "Qwen/Qwen2.5-7B-Instruct": "7B",
    "BAAI/bge-en-icl": "7B",  # Mistral's weights are as many
    "Qwen/Qwen3-4B-Instruct-2507": "7B",
    "Qwen/Qwen2.5-1.5B-Instruct": "1.5B",
    "Qwen/Qwen2.5-0.5B-Instruct": "0.5B",
}
"""Name of a model -> the shape in `model_shapes` that stands for it."""


def recipe_of(run: str) -> str:
    return run.partition("-")[0]


def replace_models(run: str, models: dict[str, Path]) -> list[str]:
    """Settings that put stand-ins in place of the models that a run names. models: shape -> folder."""
    named = re.findall(r"^(\w+): (\w+/\S+)$", (FOLDER / f"{run}.yaml").read_text(), re.MULTILINE)
    assert named
    return [f"{name}={models[SHAPES[model]]}" for name, model in named]


def write_data(folder: Path) -> dict[str, list[str]]:
    """Write the data of each recipe, and return it as settings."""
    papers = (
        json.dumps(
            {"arxiv_id": f"p{i}", "lemmas": [f"lemma {i} {n}" for n in range(12)], "theorems": []}
        )
        for i in range(4000)
    )
    (folder / "papers.jsonl").write_text("\n".join(papers))
    words = (
        {"question": f"What is {i} + 1?", "answer": f"It is {i + 1}.\n#### {i + 1}"}
        for i in range(2000)
    )
    (folder / "gsm8k.jsonl").write_text("\n".join(map(json.dumps, words)))

    def article(a: int) -> dict[str, object]:
        asked = [
            {"id": f"{a}-{q}", "question": f"Who {q}?", "answers": [{"text": "Rome"}]}
            for q in range(6)
        ]
        return {"paragraphs": [{"context": f"Rome {a}", "qas": asked}]}

    (folder / "squad.json").write_text(json.dumps({"data": [article(a) for a in range(200)]}))
    (folder / "train.jsonl").write_text(
        "\n".join(
            json.dumps({"query": f"q{i}", "pos": [f"d{i % 50}"], "neg": []}) for i in range(400)
        )
    )
    return {
        "misconceptions": [f"data={folder / 'train.jsonl'}"],
        "theorems": [f"data={folder / 'papers.jsonl'}"],
        "squad": [f"data={folder / 'squad.json'}"],
        "gsm8k": [f"data={folder / 'gsm8k.jsonl'}"],
        "countdown": [],
    }
