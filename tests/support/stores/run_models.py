"""Fabricated runs with models in a store, which no job has computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from store_contents import made_of

from ratchet.orchestrator.job_interface import Context, Job, Result
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.run_models import build_models
from ratchet.orchestrator.step import Row, Source, Summary, step
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


@dataclass(frozen=True)
class Config:
    text: str


@dataclass(frozen=True)
class Inputs:
    base: Path


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    raise AssertionError("its result is in the store")


JOB = Job("make", config=Config, inputs=Inputs, run=run)


def make_run(
    store: Store, models: dict[str, dict[str, str]], best: dict[str, str], base: str = "owner/base"
) -> RunLog:
    """Begin a run with a finetune, and a step for each model, `name`, with a row in the table."""
    run_log = RunLog.begin(store, "toy", {})
    given = store.root.with_name("base.json")
    given.write_text("{}")
    tune = step("tune", JOB, text=run_log.run_id, base=Source(given, base))
    made = {name: step(name, JOB, text=name, base=tune) for name in models}
    parts = {name: "adapter" if files is ADAPTER else "model" for name, files in models.items()}
    plan = Plan([tune, *made.values()], store)
    commit(plan, "tune", {"tuned.txt": run_log.run_id})
    rows = [Row("BM25", {"none": tune.metric("loss")})]
    for number, (name, files) in enumerate(models.items()):
        inside = {f"{parts[name]}/{file}": f"{text} " for file, text in files.items()}
        commit(plan, name, inside, loss=2.0, score=0.5 + number)
        one = made[name]
        columns = {
            "loss": one.metric("loss"),
            "MAP@25": [one.metric("score"), one.metric("loss")],
            "none": tune.metric("loss"),
        }
        rows.append(Row(f"row {number}", columns, model=one[parts[name]]))
    found = {kind: made[name][parts[name]] for kind, name in best.items()}
    described = build_models(plan, Summary(rows, best=found), run_log)
    steps: list[dict[str, Any]] = []
    for name, planned in plan.steps.items():
        manifest = planned.commit.manifest if planned.commit else None
        steps.append({"name": name, "step_id": planned.step_id, "object": manifest})
    run_log.write("plan.json", {"steps": steps, "models": [asdict(one) for one in described]})
    return run_log


def commit(plan: Plan, name: str, files: dict[str, str], **metrics: float) -> None:
    """Commit a step of a plan with these files, and record its result in the plan."""
    made_of(plan.store, plan.resolve(name).step_id, files, **metrics)
    plan.resolve(name)
