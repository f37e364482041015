"""Fabricated runs with models in a store, which no job has computed."""

from __future__ import annotations

from typing import Any

from store_contents import made_of

from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store

EMBEDDER = {
    "config.json": '{"architectures": ["BertModel"]}',
    "encoding_config.json": "{}",
    "modules.json": "[]",
}
CROSS_ENCODER = {
    "config.json": '{"architectures": ["BertForSequenceClassification"]}',
    "reranker_config.json": "{}",
}
YES_NO = {"config.json": '{"architectures": ["Qwen2ForCausalLM"]}', "reranker_config.json": "{}"}
DECODER = {"config.json": "{}", "generation_config.json": "{}"}
ADAPTER = {"adapter_config.json": "{}", "encoding_config.json": "{}"}


def make_run(
    store: Store, models: dict[str, dict[str, str]], best: dict[str, str], base: str = "owner/base"
) -> RunLog:
    """Begin a run with a finetune, and a step for each model, `name` or `name/part`, with a row in the table."""
    run_log = RunLog.begin(store, "toy", {})
    steps: list[dict[str, Any]] = [
        {"name": "tune", "step_id": None, "object": None, "inputs": [["base", base]]}
    ]
    rows: list[dict[str, Any]] = [{"label": "BM25", "columns": {}, "model": None}]
    places = {}
    for number, (name, files) in enumerate(models.items()):
        part = "adapter" if files is ADAPTER else "model"
        inside = {f"{part}/{file}": f"{text} " for file, text in files.items()}
        commit = made_of(store, f"{run_log.run_id}{number}", inside, loss=2.0, score=0.5 + number)
        steps.append(
            {
                "name": name,
                "step_id": commit.step_id,
                "object": commit.manifest,
                "inputs": [["base", "tune"]],
            }
        )
        places[name] = {"step": name, "part": part}
        columns = {
            "loss": [[name, "loss"]],
            "MAP@25": [[name, "score"], [name, "loss"]],
            "none": [["tune", "loss"]],
        }
        rows.append({"label": f"row {number}", "columns": columns, "model": places[name]})
    found = {name: places[step] for name, step in best.items()}
    run_log.write("plan.json", {"recipe": "toy", "steps": steps, "rows": rows, "best": found})
    return run_log
