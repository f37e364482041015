"""Write a model as a folder for other libraries."""

from ratchet.orchestrator.finished_run import find_card, find_run_model
from ratchet.orchestrator.step import Row, Summary
from ratchet.recipes.parts.models import make_export


def export(
    *, model: str, name: str = "", adapter: bool = False, license: str = "unknown"
) -> Summary:
    """Write a model as a folder that sentence-transformers, transformers, FlagEmbedding and PEFT can load.

    model       a model of a run (`ratchet models` lists them), a folder or a hub id
    name        name of the model in the model card; empty: the name of its run and step
    adapter     write only the LoRA adapter, with the name of its base, instead of the merged model
    license     the license in the model card, as an identifier of the hub such as apache-2.0"""
    made = find_run_model(model)
    if made:
        card = find_card(made, name or made.name, license)
    else:
        card = ""
    written = make_export("export", model, adapter=adapter, card=card)
    label = name or model
    if made and not made.changed:
        label += " (unchanged base)"
    rows = [Row(label, {"megabytes": written.metric("megabytes")}, [written])]
    return Summary(rows, results={"model": written["model"]})
