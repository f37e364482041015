"""Runs of MLflow that are found again by a tag, and names that it takes."""

from __future__ import annotations

import os
import re
from typing import Any

LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
"""MLflow's own time-out is two minutes, seven times. Variables that are set already are kept."""


def find_run(tag: str, identity: str, name: str) -> tuple[Any, str]:
    """Return MLflow's client and the id of the run of the experiment MLFLOW_EXPERIMENT_NAME (default `ratchet`) whose
    tag has this value. It is made, with this name, if there is none."""
    for variable, value in LIMITS.items():
        os.environ.setdefault(variable, value)
    from mlflow import MlflowClient  # an optional dependency

    client: Any = MlflowClient()
    title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ratchet")
    experiment = client.get_experiment_by_name(title)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(title)
    runs = client.search_runs([experiment_id], f"tags.`{tag}` = '{identity}'", max_results=1)
    run = runs[0] if runs else client.create_run(experiment_id, tags={tag: identity}, run_name=name)
    return client, run.info.run_id


def make_name(text: str) -> str:
    """Return a name of a metric or parameter with the characters that MLflow takes: `map@25` is `map_at_25`."""
    return re.sub(r"[^\w.\- :/]", "_", text.replace("@", "_at_"))
