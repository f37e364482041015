"""Models as parameters of recipes."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.jobs.comparison import choose_checkpoint as choose
from ratchet.jobs.export import export_model
from ratchet.jobs.pretrained import find_base, pretrained
from ratchet.orchestrator.finished_run import find_model_input, find_model_output, find_run_model
from ratchet.orchestrator.step import Output, Source, Step, step


@dataclass(frozen=True)
class Adapted:
    """A base with an adapter that this run trains. Embedding and scoring merge them when they load, and need not wait
    for the step that writes the merged model."""

    base: Source | Output
    adapter: Output
    merged: Output
    """The merged model, for training and for use after the run."""


Model = Source | Output | Adapted
"""A model: a published one, that of another run, or one of this run."""


def list_inputs(model: Model) -> dict[str, Any]:
    """Return the inputs of a step that runs a model."""
    if isinstance(model, Adapted):
        return {"model": model.base, "adapter": model.adapter}
    return {"model": model}


def find_folder(model: Model) -> Source | Output:
    """Return the folder of the whole model."""
    if isinstance(model, Adapted):
        return model.merged
    return model


def choose_checkpoint(name: str, training: Step) -> Step:
    """Return the step with the model to continue with: `training`, or if it keeps the models of all evaluations, a step
    that takes one of them."""
    if training.config.keep != "all":
        return training
    return step(name, choose.JOB, training=training)


def choose_model(name: str) -> Source | Output:
    """Return a model given by the user: a folder, a hub id, or a model of a run (`ratchet models` lists them). An
    adapter of PEFT is merged into the base that it names, by a step.

    A hub id is read from the hub's cache, or downloaded. Raises ModelError if neither works, and InputError for an
    unknown model of a run."""
    made = find_model_output(name)
    if made is not None:
        return made
    given = pretrained(name)
    base = find_base(given.path)
    if base is None:
        return given
    place = re.sub(r"[^\w.=-]", "_", f"merge_{Path(name).name}")
    return step(place, export_model.JOB, model=pretrained(base), adapter=given)["model"]


def choose_model_or_url(name: str) -> Source | Output | str:
    """Return a model given by the user (see `choose_model`), or the URL of an API as it is."""
    if name.startswith(("http://", "https://")):
        return name
    return choose_model(name)


def make_export(name: str, model: str, *, adapter: bool = False, **settings: Any) -> Step:
    """Return the step that writes a model for other libraries, or with `adapter` only its LoRA adapter. If a model of a
    run is an adapter, it is merged into its base, unless `adapter` is true."""
    inputs: dict[str, Any] = {"model": choose_model(model), "adapter": None}
    made = find_run_model(model)
    if made:
        if made.kind == "adapter":
            found = inputs["model"]
        else:
            found = find_model_input(made, "adapter") if adapter else None
        if found is not None:
            base = find_model_input(made, "base")
            if base is None:
                raise InputError(
                    f"model {model}: an adapter without a known base; expected one that a run trained"
                )
            inputs = {
                "model": choose_model(base) if isinstance(base, str) else base,
                "adapter": found,
            }
            settings |= {"base_name": made.base}
    if adapter and inputs["adapter"] is None:
        raise InputError(
            f"adapter: true given, for {model}, which has none; expected a model of LoRA; leave it out"
        )
    return step(
        name, export_model.JOB, **inputs, form="adapter" if adapter else "model", **settings
    )
