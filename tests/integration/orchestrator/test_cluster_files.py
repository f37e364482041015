"""cluster.yaml and rayjob.yaml: by Ray's own schema and checks, by the operator's schema, and on Ray's fake nodes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from nodes import start_autoscaled

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = Path(__file__).with_name("rayjob.schema.json")
"""The RayJob CRD of KubeRay 1.7.0 without its descriptions, and without what lies below fields that we do not use."""


def cluster() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def locked(package: str) -> str:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{package}=="))


def test_ray_accepts_the_cluster() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    whole = prepare_config(copy.deepcopy(cluster()))
    validate_config(whole)
    built = (ROOT / "Dockerfile").read_text()
    assert whole["docker"]["image"] in built, "the image that the Dockerfile says how to build"
    assert f"FROM rayproject/ray:{locked('ray')}-py311" in built
    assert f"faiss-gpu=={locked('faiss-cpu')}" in built
    assert "make setup" not in (ROOT / "cluster.yaml").read_text(), (
        "nothing is installed at a start"
    )


def test_workers_come_from_none_and_spot_first() -> None:
    types = cluster()["available_node_types"]
    assert types["head"]["resources"] == {"CPU": 0}, "no step's workers where drivers live"
    workers = {name: kind for name, kind in types.items() if name != "head"}
    assert all(kind["min_workers"] == 0 for kind in workers.values())
    for kind in ("cpu", "gpu", "gpus"):
        spot, steady = workers[f"{kind}_spot"], workers[f"{kind}_on_demand"]
        assert spot["resources"] == steady["resources"]
        assert spot["priority"] > steady.get("priority", 0)
        market = spot["node_config"].pop("InstanceMarketOptions")
        assert market == {"MarketType": "spot"}
        assert spot["node_config"] == steady["node_config"]


def closed(schema: Any) -> Any:
    """The same schema, in which fields that it does not name are errors."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    inner = {key: closed(value) for key, value in schema.items()}
    if (
        "properties" in schema
        and isinstance(schema["properties"], dict)
        and schema.get("type") == "object"
    ):
        inner.setdefault("additionalProperties", False)
    return inner


def rayjob_schema() -> Any:
    schema = closed(json.loads(SCHEMA.read_text()))
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def test_the_operator_accepts_the_job() -> None:
    job = yaml.safe_load((ROOT / "rayjob.yaml").read_text())
    schema = rayjob_schema()
    jsonschema.validate(job, schema)
    spec = job["spec"]["rayClusterSpec"]
    assert spec["rayVersion"] == locked("ray")
    assert f"rayproject/ray:{locked('ray')}-py311" in (ROOT / "Dockerfile").read_text()
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] == 0
    wrong = copy.deepcopy(job)
    wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(wrong, schema)


def test_no_machine_needs_a_common_disk() -> None:
    cluster = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    starts = [cluster[f"{kind}_start_ray_commands"][-1] for kind in ("head", "worker")]
    for text in (*starts, *cluster["setup_commands"]):
        assert "HF_HOME=/home/ray/huggingface" in text
        assert "RATCHET_CACHE=/home/ray/cache" in text
    for kind in cluster["available_node_types"].values():
        assert kind["node_config"]["IamInstanceProfile"]
    assert "mount" not in "".join(cluster["docker"]["run_options"])


def test_pods_share_a_volume() -> None:
    image = (ROOT / "Dockerfile").read_text()
    assert "HF_HOME=/mnt/ratchet/huggingface" in image
    assert "RATCHET_CACHE=/mnt/ratchet/cache" in image
    job = yaml.safe_load((ROOT / "rayjob.yaml").read_text())
    spec = job["spec"]["rayClusterSpec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/mnt/ratchet" in mounts


def test_both_tell_what_may_be_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.errors import InputError
    from ratchet.orchestrator.execution.needs import read_machines

    for file in ("cluster.yaml", "rayjob.yaml"):
        monkeypatch.setenv("RATCHET_CLUSTER", str(ROOT / file))
        found = read_machines()
        assert found
        assert {(one.cpus, one.gpus, one.count) for one in found} == {
            (16.0, 0.0, 8),
            (16.0, 1.0, 8),
            (96.0, 8.0, 2),
        }
        assert {one.labels.get("market") for one in found if one.gpus == 1} == {"spot", "on-demand"}
    assert found[0].memory == pytest.approx(64 * 2**30 / 1e9)
    (tmp_path / "other.yaml").write_text("a: 1")
    monkeypatch.setenv("RATCHET_CLUSTER", str(tmp_path / "other.yaml"))
    with pytest.raises(
        InputError,
        match=r"RATCHET_CLUSTER .*other\.yaml: .*expected the file that created this cluster",
    ):
        read_machines()


def test_unplaceable_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.errors import InputError
    from ratchet.jobs.retrieval import embed
    from ratchet.orchestrator.execution.cluster import Cluster
    from ratchet.orchestrator.step import Resources, Source, step

    monkeypatch.setenv("RATCHET_CLUSTER", str(ROOT / "cluster.yaml"))
    cluster, source = Cluster("nowhere"), Source(ROOT)

    def embedding(**resources: Any) -> Any:
        return step(
            "embed",
            embed.JOB,
            model=source,
            texts=source,
            role="query",
            resources=Resources(**resources),
        )

    assert cluster.place(embedding()) == Resources(workers=48, cpus=11.0, gpus=1.0)
    assert cluster.place(embedding(labels=("market=on-demand",))).workers == 24
    for resources, said in (
        (
            {"workers": 49},
            r"step embed: 49 workers of 1 CPUs and 1 GPUs given; expected at most the 48 that fit",
        ),
        ({"cpus": 97.0}, r"1 workers of 97 CPUs and 1 GPUs given; expected at most the 0 that fit"),
        (
            {"workers": 25, "labels": ("market=spot",)},
            r"market=spot given; expected at most the 24 that fit",
        ),
    ):
        with pytest.raises(InputError, match=said):
            cluster.place(embedding(**resources))


def test_both_start_a_recipe_that_there_is() -> None:
    from ratchet.orchestrator.recipe import names

    job = yaml.safe_load((ROOT / "rayjob.yaml").read_text())
    words = job["spec"]["entrypoint"].split()
    assert words[:4] == ["python", "-m", "orchestrator", "run"]
    assert words[4] in names()


@pytest.mark.soak
def test_its_nodes_come_with_the_work_and_go_with_it(tmp_path: Path) -> None:
    """The same node types on Ray's fake provider, which starts processes instead of machines."""
    config = cluster()
    types = config["available_node_types"]
    types["ray.head.default"] = types.pop("head")  # the provider's own name for it
    for kind in types.values():
        kind["node_config"] = {}
    kept = ("cluster_name", "max_workers", "upscaling_speed", "available_node_types")
    nodes = start_autoscaled(
        tmp_path, {name: config[name] for name in kept} | {"idle_timeout_minutes": 0.3}
    )
    try:
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, nodes.address],
            env=nodes.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        log = (tmp_path / "node-1.log").read_text()
        assert driver.returncode == 0, driver.stderr[-3000:] + log[-2000:]
        seen = json.loads(driver.stdout.splitlines()[-1])
    finally:
        nodes.end()
    assert seen["first"] == 1, "the head alone"
    assert seen["most"]["CPU"] >= 8 * 16
    assert seen["most"]["GPU"] >= 8
    assert set(seen["markets"]) == {"spot"}, "what is cheap comes first"
    assert seen["last"] == 1, "and they are gone when there is nothing to do"


DRIVER = """
import json, sys, time
import ray
from ratchet.orchestrator.execution.cluster import Cluster

cluster = Cluster(sys.argv[1])
cluster.start()
alive = lambda: [node for node in ray.nodes() if node["Alive"]]
first, most = len(alive()), cluster.maximum()

@ray.remote
def where():
    time.sleep(8)
    return ray.get_runtime_context().get_node_id()

ids = ray.get([where.options(num_cpus=16).remote(), where.options(num_cpus=1, num_gpus=1).remote()])
markets = [node["Labels"].get("market") for node in alive() if node["NodeID"] in ids]
until = time.monotonic() + 120
while len(alive()) > 1 and time.monotonic() < until:
    time.sleep(1)
seen = {"first": first, "most": {"CPU": most.cpus, "GPU": most.gpus}, "markets": markets, "last": len(alive())}
print(json.dumps(seen))
"""
