"""The model card of a model that a run made: Hugging Face front matter, table, data, settings, lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ratchet.orchestrator.reporting import report_json, run_data
from ratchet.orchestrator.reporting.report import render_template
from ratchet.orchestrator.reporting.run_data import StepReport
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.run_models import RunModel
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.version import VERSION
from ratchet.serving import list_commands

USES: Mapping[str, tuple[str, str, str]] = {
    "embedder": ("sentence-transformers", "sentence-similarity", 'SentenceTransformer("{name}")'),
    "reranker": ("sentence-transformers", "text-ranking", 'CrossEncoder("{name}")'),
    "decoder": ("transformers", "text-generation", 'AutoModelForCausalLM.from_pretrained("{name}")'),
    "adapter": ("peft", "text-generation", 'AutoPeftModel.from_pretrained("{name}")'),
}
"""Kind of model -> library, pipeline tag of the hub, and the call that loads the model."""


def write_card(store: Store, made: RunModel, name: str, license: str) -> str:
    """Return the text of README.md. name: the name of the exported model. license: an identifier of the hub."""
    data = report_json.read(RunLog(store.local("runs", made.run_id)))
    library, task, call = USES[made.kind]
    front: dict[str, Any] = {"license": license, "library_name": library, "pipeline_tag": task, "tags": ["ratchet"]}
    is_on_hub = made.base.count("/") == 1 and not made.base.startswith((".", "/", "~"))
    if is_on_hub:
        front["base_model"] = made.base
    values: dict[str, Any] = {"front": yaml.safe_dump(front, sort_keys=False), "made": made, "name": name}
    values |= {"link": f"https://huggingface.co/{made.base}" if is_on_hub else "", "version": VERSION, "data": data}
    code = f"from {library.replace('-', '_')} import {call.partition('(')[0].partition('.')[0]}\n\n"
    code += f"model = {call.format(name=name)}"
    if data:
        lineage = list_lineage(data.steps, made.step)
    else:
        lineage = []
    serve = "\n".join(list_commands(made.kind, name))
    return render_template("card.md.j2", **values, code=code, serve=serve, lineage=lineage, parts=run_data)


def list_lineage(steps: Sequence[StepReport], name: str) -> list[StepReport]:
    """Return a step and all steps that it depends on, in the order of the recipe."""
    by_name = {step.name: step for step in steps}
    wanted = [name]
    for one in wanted:
        found = (source.partition("[")[0] for _, source, _ in by_name[one].inputs)
        wanted += [source for source in found if source in by_name and source not in wanted]
    made: list[StepReport] = []
    for step in steps:
        if step.name in wanted:
            made.append(step)
    return made
