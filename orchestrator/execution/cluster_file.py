"""The maximum size of a cluster, from its configuration: cluster.yaml of `ray up`, or KubeRay's RayJob or RayCluster.

Ray does not tell a driver how far the autoscaler may scale up. RATCHET_CLUSTER names the file on the head node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.kuberay.utils import parse_quantity

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.placement import Machine


def machines(path: Path) -> list[Machine]:
    """Read the maximum number of machines of each kind. Raises InputError for another kind of file."""
    try:
        content: Any = yaml.safe_load(path.read_text())
        if "available_node_types" in content:
            kinds = content["available_node_types"].items()
            return [_node_type(kind, content) for name, kind in kinds if name != content["head_node_type"]]
        spec = content["spec"]
        return [_group(group) for group in spec.get("rayClusterSpec", spec)["workerGroupSpecs"]]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(
            f"RATCHET_CLUSTER {path}: {type(error).__name__}: {error}; expected the file that created this"
            " cluster (available_node_types of `ray up`, or a RayJob); correct or unset the variable on the head"
        ) from None


def _node_type(kind: dict[str, Any], content: dict[str, Any]) -> Machine:
    resources = kind["resources"]
    return Machine(
        float(resources.get("CPU", 0)),
        float(resources.get("GPU", 0)),
        min(kind.get("max_workers", content["max_workers"]), content["max_workers"]),
        resources["memory"] / 1e9 if "memory" in resources else float("inf"),
        labels=kind.get("labels", {}),
    )


def _group(group: dict[str, Any]) -> Machine:
    asked = group["template"]["spec"]["containers"][0]["resources"]
    limits = asked.get("limits", asked.get("requests", {}))
    gpus = sum(float(value) for name, value in limits.items() if name.endswith("/gpu"))
    memory = float(parse_quantity(limits["memory"])) / 1e9 if "memory" in limits else float("inf")
    cpus = float(parse_quantity(limits["cpu"]))
    return Machine(cpus, gpus, group["maxReplicas"], memory, labels=group.get("labels", {}))
