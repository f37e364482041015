"""The model card of a model that a run made: Hugging Face front matter, table, data, settings, lineage."""

import re
from collections.abc import Mapping, Sequence

from ratchet.orchestrator.reporting import report_json, run_data
from ratchet.orchestrator.reporting.report import render_template
from ratchet.orchestrator.reporting.run_data import StepReport
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.run_models import RunModel
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.version import VERSION
from ratchet.serving import list_commands

USES: Mapping[str, tuple[str, str, str, str]] = {
    "embedder": ("sentence-transformers", "sentence-similarity", "SentenceTransformer", ""),
    "reranker": ("sentence-transformers", "text-ranking", "CrossEncoder", ""),
    "decoder": ("transformers", "text-generation", "AutoModelForCausalLM", ".from_pretrained"),
    "adapter": ("peft", "text-generation", "AutoPeftModel", ".from_pretrained"),
}
"""Kind of model -> library, pipeline tag of the hub, and the class and the method that load the model."""


LOCAL_PATH = re.compile(r"(?<![\w/:.~<-])(?:~|\.{1,2})?/(?:[^\s/'\"`|\\]+/)*([^\s/'\"`|\\]+)")
"""A path on a machine, of which the card shows the last name only: cards are published."""


def write_card(store: Store, made: RunModel, name: str, license: str) -> str:
    """Return the text of README.md. name: the name of the exported model. license: an identifier of the hub."""
    from huggingface_hub import EvalResult, ModelCardData

    data = report_json.read(RunLog(store.local("runs", made.run_id)))
    library, task, loader, method = USES[made.kind]
    results = []
    for column, value in made.metrics.items():
        rows = f"held-out rows of {made.recipe}"
        results.append(
            EvalResult(task, made.recipe, rows, column.lower(), value, metric_name=column)
        )
    front = ModelCardData(
        license=license,
        library_name=library,
        pipeline_tag=task,
        tags=["ratchet"],
        model_name=name,
        eval_results=results,
    )
    link = ""
    if made.base.count("/") == 1 and not made.base.startswith((".", "/", "~")):
        link = f"https://huggingface.co/{made.base}"
        front.base_model = made.base
    card = render_template(
        "card.md.j2",
        front=front.to_yaml(),
        made=made,
        name=name,
        link=link,
        version=VERSION,
        data=data,
        code=f'from {library.replace("-", "_")} import {loader}\n\nmodel = {loader}{method}("{name}")',
        serve="\n".join(list_commands(made.kind, name)),
        lineage=list_lineage(data.steps, made.step) if data else [],
        parts=run_data,
    )
    return LOCAL_PATH.sub(r"\1", card)


def list_lineage(steps: Sequence[StepReport], name: str) -> list[StepReport]:
    """Return a step and all steps that it depends on, in the order of the recipe."""
    wanted = {name}
    found: list[StepReport] = []
    for step in reversed(steps):
        if step.name in wanted:
            found.insert(0, step)
            wanted |= {source.partition("[")[0] for _, source, _ in step.inputs}
    return found
