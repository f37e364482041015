"""MLflow runs that are found by a tag, and valid MLflow names."""

from __future__ import annotations

import os
import re
from typing import Any

LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
"""Shorter limits than MLflow's defaults (two minutes, seven times), unless the variable is set already."""


def find_run(tag: str, identity: str, name: str) -> tuple[Any, str]:
    """Return MLflow's client and the id of the run whose tag `tag` is `identity`, and create the run as `name` if it is
    missing. The experiment is MLFLOW_EXPERIMENT_NAME (default: `ratchet`)."""
    for variable, value in LIMITS.items():
        os.environ.setdefault(variable, value)
    from mlflow import MlflowClient  # an optional dependency

    client: Any = MlflowClient()
    title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ratchet")
    experiment = client.get_experiment_by_name(title)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(title)
    runs = client.search_runs([experiment_id], f"tags.`{tag}` = '{identity}'", max_results=1)
    if runs:
        run = runs[0]
    else:
        run = client.create_run(experiment_id, tags={tag: identity}, run_name=name)
    return client, run.info.run_id


def make_name(text: str) -> str:
    """Convert a name of a metric or parameter to one that MLflow accepts: `map@25` becomes `map_at_25`."""
    return re.sub(r"[^\w.\- :/]", "_", text.replace("@", "_at_"))
