"""Steps that load the same model: one of them does the work of all, and each result is as if it had run alone."""

from __future__ import annotations

from pathlib import Path

import command
import pyarrow as pa
import pytest
from command import sets

from ratchet.data.tables import write_table
from ratchet.orchestrator.run_log import list_run_logs
from ratchet.orchestrator.store import Store

RECIPE = """
from pathlib import Path
from ratchet.jobs.retrieval import embed
from ratchet.orchestrator.step import Source, Summary, step

def texts(*, folder: str, model: str, names: str) -> Summary:
    goals = []
    for name in names.split("+"):
        role = "query" if name == "queries" else "passage"
        given = {"model": Source(Path(model)), "texts": Source(Path(folder) / name)}
        goals.append(step(name, embed.JOB, role=role, dtype="float32", **given))
    return Summary([], goals=goals)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_texts_are_embedded_with_one_load(
    tmp_path: Path, tiny: dict[str, Path], shared_ray: tuple[str, ...], workers: int
) -> None:
    for name, rows in (("many", 150), ("few", 3), ("queries", 70)):
        ids = [f"{name}{row}" for row in range(rows)]
        table = pa.table({"id": ids, "text": [f"text {row} of {name}" for row in range(rows)]})
        write_table(tmp_path / name / "shard-00000.parquet", table)
    (tmp_path / "texts.py").write_text(RECIPE)

    def embed(store: str, names: str) -> dict[str, str]:
        """Return step -> digest of its result."""
        values = {"folder": tmp_path, "model": tiny["bert"], "names": names}
        values["embed.workers"] = workers
        settings = sets(*(f"{name}={value}" for name, value in values.items()))
        given = ["--store", str(tmp_path / store), *shared_ray, *settings]
        status, output = command.run("run", str(tmp_path / "texts.py"), *given)
        assert status == 0, output
        run_log = next(list_run_logs(Store.view(tmp_path / store)))
        return {step["name"]: step["object"] for step in run_log.steps()}

    made = embed("together", "many+few+queries")
    events = next(list_run_logs(Store.view(tmp_path / "together"))).events()
    started = {
        event["step"]: event.get("together") for event in events if event["event"] == "started"
    }
    assert started == {"many": ["few", "queries"], "few": None, "queries": None}
    for name, digest in made.items():
        assert embed("alone", name) == {name: digest}


def test_what_is_left_of_a_group_is_a_group(
    tmp_path: Path, tiny: dict[str, Path], shared_ray: tuple[str, ...]
) -> None:
    """The step that does the work of all fails; the others go on without it, with one load."""
    for name, rows in (("many", 150), ("few", 3), ("queries", 70)):
        column = "no_text" if name == "many" else "text"
        table = pa.table({"id": [f"{row}" for row in range(rows)], column: ["a text"] * rows})
        write_table(tmp_path / name / "shard-00000.parquet", table)
    (tmp_path / "texts.py").write_text(RECIPE)
    settings = sets(
        f"folder={tmp_path}", f"model={tiny['bert']}", "names=many+few+queries", "embed.workers=1"
    )
    given = ["--store", str(tmp_path / "store"), *shared_ray, *settings]
    status, output = command.run("run", str(tmp_path / "texts.py"), *given)
    assert status == 1
    assert "many failed" in output
    run_log = next(list_run_logs(Store.view(tmp_path / "store")))
    groups = []
    for event in run_log.events():
        if event["event"] == "started":
            groups.append((event["step"], event.get("together")))
    assert groups[0] == ("many", ["few", "queries"])
    assert groups[1] in [("few", ["queries"]), ("queries", ["few"])]
    made = {step["name"] for step in run_log.steps() if step["object"]}
    assert made == {"few", "queries"}
