"""Write a model as a folder for other libraries, checked with those that are installed."""

from __future__ import annotations

from typing import Any

from ratchet.errors import InputError
from ratchet.jobs.export import export_model
from ratchet.orchestrator.finished_run import find_card, find_model_input, find_run_model
from ratchet.orchestrator.step import Output, Row, Source, Summary, step
from ratchet.recipes.parts.models import find_model


def export(*, model: str, name: str = "", adapter: bool = False, license: str = "unknown") -> Summary:
    """Write a model as a folder that sentence-transformers, transformers, FlagEmbedding and PEFT load as it is.

    model       a model of a run (`ratchet models` lists them), a folder or a hub id
    name        what the model card calls it; empty: the name of its run and step
    adapter     the LoRA adapter alone, with the name of its base, instead of the merged model
    license     the license in the model card, an identifier of the hub such as apache-2.0
    """
    inputs: dict[str, Any] = {"model": find_model(model), "adapter": None}
    card, base_name = "", ""
    if made := find_run_model(model):
        card, base_name = find_card(made, name or made.name, license), made.base
        found = inputs["model"] if made.kind == "adapter" else find_model_input(made, "adapter") if adapter else None
        if found is not None:
            inputs = {"model": find_base(find_model_input(made, "base"), model), "adapter": found}
    if adapter and inputs["adapter"] is None:
        raise InputError(f"adapter: true given, for {model}, which has none; expected a model of LoRA; leave it out")
    form = "adapter" if adapter else "model"
    written = step("export", export_model.JOB, **inputs, form=form, card=card, base_name=base_name)
    columns = {name: written.metric(name) for name in ("difference", "megabytes")}
    return Summary([Row(name or model, columns, [written])], result=written["model"])


def find_base(given: Output | str | None, model: str) -> Source | Output:
    """Return the base of an adapter: the output of a step, or the model of a name."""
    if given is None:
        raise InputError(f"model {model}: an adapter without a known base; expected one that a run trained")
    return find_model(given) if isinstance(given, str) else given
