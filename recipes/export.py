"""Write a model as a folder for other libraries, checked with those that are installed."""

from __future__ import annotations

from ratchet.orchestrator.finished_run import find_card, find_run_model
from ratchet.orchestrator.step import Row, Summary
from ratchet.recipes.parts.models import make_export


def export(*, model: str, name: str = "", adapter: bool = False, license: str = "unknown") -> Summary:
    """Write a model as a folder that sentence-transformers, transformers, FlagEmbedding and PEFT load as it is.

    model       a model of a run (`ratchet models` lists them), a folder or a hub id
    name        what the model card calls it; empty: the name of its run and step
    adapter     the LoRA adapter alone, with the name of its base, instead of the merged model
    license     the license in the model card, an identifier of the hub such as apache-2.0
    """
    made = find_run_model(model)
    card = find_card(made, name or made.name, license) if made else ""
    written = make_export("export", model, adapter=adapter, card=card)
    columns = {title: written.metric(title) for title in ("difference", "megabytes")}
    return Summary([Row(name or model, columns, [written])], results={"model": written["model"]})
