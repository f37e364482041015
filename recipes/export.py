"""Write a model as a folder for other libraries, and check it with the installed ones."""

from __future__ import annotations

from typing import Any

from ratchet.errors import InputError
from ratchet.orchestrator.finished_run import find_card, find_run_model
from ratchet.orchestrator.step import Row, Summary
from ratchet.recipes.parts.comparison import compare, evaluate_embedder, prepare_evaluation
from ratchet.recipes.parts.models import make_export


def export(
    *,
    model: str,
    name: str = "",
    adapter: bool = False,
    license: str = "unknown",
    onnx: bool = False,
    int8: bool = False,
    data: str = "",
) -> Summary:
    """Write a model as a folder that sentence-transformers, transformers, FlagEmbedding and PEFT can load.

    model       a model of a run (`ratchet models` lists them), a folder or a hub id
    name        name of the model in the model card; empty: the name of its run and step
    adapter     write only the LoRA adapter, with the name of its base, instead of the merged model
    license     the license in the model card, as an identifier of the hub such as apache-2.0
    onnx        also write onnx/model.onnx; for embedders only
    int8        also write onnx/model_int8.onnx (8 bits, for CPUs), and evaluate it and the float32 model on `data`
    data        queries with their documents, in any format (docs/data.md); given exactly when `int8` is set"""
    if int8 != bool(data):
        raise InputError(
            f"export: int8={str(int8).lower()} and data='{data}' given; expected both or none, since it depends on the"
            " data what 8 bits cost; add the other one"
        )
    made = find_run_model(model)
    card = find_card(made, name or made.name, license) if made else ""
    written = make_export("export", model, adapter=adapter, card=card, onnx=onnx, int8=int8)
    columns = {title: written.metric(title) for title in ("difference", "megabytes")}
    label = name or model
    if made and not made.changed:
        label += " (unchanged base)"
    rows = [Row(label, columns, [written])]
    if int8:
        asked = prepare_evaluation(data)
        given: dict[str, Any] = {"model": written["model"], "asked": asked, "dtype": "float32"}
        whole = evaluate_embedder("float32", **given)
        small = evaluate_embedder("int8", **given, before=whole, onnx=written["model/onnx/model_int8.onnx"])
        systems = {"float32": whole, "int8": small}
        for label, cells in compare(systems, asked["queries"]).items():
            size = written.metric("int8/megabytes" if label == "int8" else "megabytes")
            rows.append(Row(label, {**cells, "megabytes": size}, [*systems[label].parents, systems[label]]))
    return Summary(rows, results={"model": written["model"]})
