"""How many workers fit on machines, against trying it out."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.tables import write_table
from ratchet.errors import InputError, RecipeError
from ratchet.jobs.answers import sft
from ratchet.jobs.retrieval import embed, evaluate_retrieval, merge, mine, prepare
from ratchet.orchestrator.execution import needs
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.job_interface import Job, Resources
from ratchet.orchestrator.job_interface.placement import (
    Machine,
    choose_workers,
    count_fitting,
    make_ray_options,
    resolve_resources,
)
from ratchet.orchestrator.recipe import Settings, apply_setting, build, find
from ratchet.orchestrator.step import Source, step
from ratchet.orchestrator.sweeps.search import choose_gpus_per_trial, compute_max_concurrent
from ratchet.orchestrator.sweeps.trial import limit_workers

SOURCE = Source(Path(__file__))
MACHINES = st.lists(
    st.builds(
        Machine, st.integers(0, 9).map(float), st.integers(0, 3).map(float), st.integers(1, 3)
    ),
    max_size=4,
)


def put(machines: list[Machine], cpus: float, gpus: float) -> int:
    """One worker after the other, wherever there is room."""
    left = [[one.cpus, one.gpus] for one in machines for _ in range(one.count)]
    for number in itertools.count():
        room = next((have for have in left if have[0] >= cpus and have[1] >= gpus), None)
        if room is None:
            return number
        room[0] -= cpus
        room[1] -= gpus
    raise AssertionError


@given(MACHINES, st.integers(1, 5), st.integers(0, 2))
def test_as_many_fit_as_can_be_put(machines: list[Machine], cpus: int, gpus: int) -> None:
    asked = Resources(workers=1, cpus=float(cpus), gpus=float(gpus))
    assert count_fitting(machines, asked) == put(machines, cpus, gpus)


@given(MACHINES, st.integers(1, 6), st.integers(0, 2))
def test_the_share_of_cpus_is_the_largest_with_which_all_fit(
    machines: list[Machine], workers: int, gpus: int
) -> None:
    asked = resolve_resources(Resources(workers=workers, gpus=float(gpus)), machines)
    assert (asked.workers, asked.gpus) == (workers, gpus)
    # Beside GPUs, one CPU is for other steps, and the rest is shared by the GPUs.
    shares = [(one.cpus - 1) * min(1, (gpus or 1) / one.gpus) for one in machines if one.gpus]
    if not gpus:
        shares += [one.cpus for one in machines if not one.gpus]
    most = int(max(shares, default=1))
    left = [
        replace(one, cpus=max(0, one.cpus - 1)) if gpus and one.gpus else one for one in machines
    ]
    enough = [cpus for cpus in range(1, most + 1) if put(left, cpus, gpus) >= workers]
    assert asked.cpus == max(enough, default=1)


def test_workers_are_one_per_gpu_and_one_where_there_is_none() -> None:
    laptop = [Machine(2.0)]
    assert resolve_resources(Resources(), laptop) == Resources(workers=1, cpus=2.0, gpus=0.0)
    assert resolve_resources(Resources(workers=2), laptop).cpus == 1.0
    cloud = [Machine(0.0), Machine(16.0, count=8), Machine(16.0, 4.0, count=2)]
    assert resolve_resources(Resources(), cloud) == Resources(workers=8, cpus=3.0, gpus=1.0)
    assert resolve_resources(Resources(gpus=0.0), cloud).cpus == 16.0
    assert resolve_resources(Resources(gpus=2.0), cloud).workers == 4
    assert resolve_resources(Resources(gpus=0.0), [Machine(64.0, 8.0)]).cpus == 7.0


@pytest.mark.slow
@given(MACHINES, st.integers(1, 6), st.integers(1, 6))
def test_who_may_begin_with_fewer_has_as_many_as_fit(
    machines: list[Machine], workers: int, least: int
) -> None:
    asked = Resources(workers=workers, min_workers=least, cpus=2.0, gpus=0.0)
    fit = put(machines, 2, 0)
    assert choose_workers(machines, asked) == (
        min(fit, workers) if fit >= min(least, workers) else 0
    )
    assert choose_workers(machines, replace(asked, min_workers=None)) == (
        workers if fit >= workers else 0
    )


def test_workers_go_where_their_labels_memory_and_gpus_are() -> None:
    spot = Machine(16.0, 1.0, 8, 64.0, frozenset({"L40S"}), {"market": "spot"})
    steady = Machine(16.0, 1.0, 2, 128.0, frozenset({"H100"}), {"market": "on-demand"})
    asked = Resources(workers=1, cpus=1.0, gpus=1.0)
    assert count_fitting([spot, steady], asked) == 10
    assert count_fitting([spot, steady], replace(asked, labels=("market=on-demand",))) == 2
    assert count_fitting([spot, steady], replace(asked, accelerator="L40S")) == 8
    assert count_fitting([spot, steady], replace(asked, memory=100.0)) == 2
    assert (
        count_fitting([replace(spot, accelerators=None)], replace(asked, accelerator="A100")) == 8
    )
    assert resolve_resources(Resources(accelerator="H100"), [spot, steady]).workers == 2
    with pytest.raises(InputError, match="expected name=value"):
        count_fitting([spot], replace(asked, labels=("spot",)))


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        ({}, 8, None),
        ({"cpu.max": "200000 100000\n", "memory.max": "2000000000\n"}, 2, 2.0),
        ({"cpu.max": "50000 100000\n", "memory.max": "max\n"}, 1, None),
        ({"cpu.max": "max 100000\n"}, 8, None),
    ],
)
def test_a_container_has_no_more_than_its_limits(
    files: dict[str, str],
    cpus: int,
    memory: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(needs, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    (machine,) = needs.list_known_machines()
    assert needs.count_cpus() == machine.cpus == cpus
    assert memory in (None, machine.memory)
    given: dict[str, Any] = {}

    def stop(self: Cluster, **options: Any) -> None:
        given.update(options)
        raise RuntimeError

    monkeypatch.setattr(Cluster, "_init_ray", stop)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RuntimeError):
        Cluster().start()
    assert given["num_cpus"] == cpus


def test_a_training_has_no_more_workers_than_its_batch_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {
        "worker": {"resources": {"CPU": 64, "GPU": 8}, "max_workers": 8},
        "head": {"resources": {"CPU": 4}},
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(
        json.dumps({"available_node_types": nodes, "head_node_type": "head", "max_workers": 8})
    )
    monkeypatch.setenv("RATCHET_CLUSTER", str(file))
    cluster = Cluster("cluster:6379")
    inputs = {name: Source(tmp_path) for name in ("base", "train", "valid")}
    for batch_size, most in ((16, 8), (2, 1), (4096, 64)):
        tuned = step("sft", sft.JOB, batch_size=batch_size, **inputs)
        assert tuned.place(cluster.machines()).workers == cluster.place(tuned).workers == most
    embedded = step("embed", embed.JOB, model=inputs["base"], texts=inputs["train"])
    assert embedded.place(cluster.machines()).workers == 64
    asked = step("asked", sft.JOB, batch_size=2, resources=Resources(workers=4), **inputs)
    assert asked.place(cluster.machines()).workers == 4, "a number that is given is kept"


def test_single_process_has_one_workers_resources() -> None:
    made = step(
        "merge",
        merge.JOB,
        base=SOURCE,
        adapter=SOURCE,
        corpus=SOURCE,
        resources=Resources(memory=40),
    )
    cluster = Cluster()
    cluster.__dict__["file_machines"] = [Machine(8.0, 0.0, 2), Machine(32.0, 8.0, 4, memory=200.0)]
    found = cluster.place(made)
    assert (found.workers, found.gpus, found.memory) == (1, 0.0, 40)
    assert make_ray_options(found) == {"memory": 40 * 10**9}
    with pytest.raises(InputError, match="1 workers of"):
        cluster.place(replace(made, resources=Resources(memory=300, cpus=64)))


@pytest.mark.parametrize(
    ("job", "name", "value"),
    [
        (merge.JOB, "workers", 2),
        (merge.JOB, "gpus", 1.0),
        (prepare.JOB, "placement", "SPREAD"),
        (prepare.JOB, "cpus", 2.0),
        (embed.JOB, "micro_batch_size", 4),
        (embed.JOB, "timeout", 60.0),
        (mine.JOB, "batch_tokens", 512),
    ],
)
def test_resources_that_a_job_does_not_use_are_refused(job: Job, name: str, value: Any) -> None:
    inputs = {field.name: SOURCE for field in fields(job.inputs)}
    with pytest.raises(
        RecipeError,
        match=f"{name} given; expected one of .*, since {job.name} uses no other resource",
    ):
        step("made", job, resources=Resources(**{name: value}), **inputs)
    with pytest.raises(
        RecipeError, match=f"--set made.{name}={value}: {name} given; expected one of"
    ):
        apply_setting(step("made", job, **inputs), f"{name}={value}")


def test_a_pattern_gives_a_resource_to_the_steps_that_use_it() -> None:
    lines = [
        f"data={Path(__file__)}",
        "iterations=1",
        "*.workers=3",
        "iter0/*.labels=market=on-demand",
    ]
    for one in build(find("retriever"), Settings.read(lines))[0]:
        uses = one.job.resources is None or "workers" in one.job.resources
        assert one.resources.workers == (3 if uses else None), one.name
        labelled = one.name.startswith("iter0/") and (
            one.job.resources is None or "labels" in one.job.resources
        )
        assert one.resources.labels == (("market=on-demand",) if labelled else ()), one.name


def test_trials_of_a_sweep_share_the_gpus() -> None:
    cluster = Cluster()
    cluster.__dict__["file_machines"] = [Machine(64.0, 8.0)]
    steps = build(find("retriever"), Settings.read([f"data={Path(__file__)}", "iterations=1"]))[0]
    for trials, chosen, gpus, at_once in (
        (16, None, 1, 8),
        (3, None, 2, 4),
        (1, None, 8, 1),
        (9, 3, 3, 2),
    ):
        assert choose_gpus_per_trial(cluster, trials, chosen) == gpus
        shared = [limit_workers(one, gpus) for one in steps]
        assert compute_max_concurrent(shared, cluster) == at_once
        assert max(cluster.place(one).workers or 0 for one in shared) == gpus
    own = replace(steps[1], resources=Resources(workers=4))
    assert limit_workers(own, 1).resources.workers == 4, "what the user sets stays"
    two_each = replace(steps[1], resources=Resources(gpus=2.0))
    assert limit_workers(two_each, 4).resources.workers == 2
    with pytest.raises(InputError, match="expected at most the 8 GPUs"):
        choose_gpus_per_trial(cluster, 1, 9)
    cluster.__dict__["file_machines"] = [Machine(64.0)]
    assert choose_gpus_per_trial(cluster, 4, None) is None


def test_a_small_search_leaves_the_gpus_to_others(tmp_path: Path) -> None:
    for name, rows in (("few", 3000), ("many", 300_000)):
        table = pa.table({"id": [str(row) for row in range(rows)]})
        write_table(tmp_path / name / "shard-00000.parquet", table)
    machines = [Machine(64.0, 8.0)]
    searches = ((mine.JOB, {}), (evaluate_retrieval.JOB, {"tag": "x"}))
    for job, values in searches:
        inputs = {field.name: SOURCE for field in fields(job.inputs)}
        made = step("search", job, **inputs, **values)
        for corpus, gpus, workers in (("few", 0.0, 1), ("many", 1.0, 8)):
            paths = {"queries": tmp_path / "few", "corpus": tmp_path / corpus}
            given = job.inputs(**dict.fromkeys(inputs) | paths)
            found = made.place(machines, given)
            assert (found.gpus, found.workers) == (gpus, workers)
            assert found.cpus == (7.0 if gpus else 1.0)
        asked = replace(made, resources=Resources(gpus=1.0, workers=1))
        few = job.inputs(
            **dict.fromkeys(inputs) | {"queries": tmp_path / "few", "corpus": tmp_path / "few"}
        )
        assert asked.place(machines, few).gpus == 1.0, "what the user sets stays"
