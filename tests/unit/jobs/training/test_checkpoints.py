"""Checkpoints of a training run on one worker: what is left of it after a kill."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from regression import OPTIONS

from ratchet.jobs.training.checkpoints import Checkpoints, list_checkpoints
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Context
from ratchet.orchestrator.job_interface.digests import find_damage


class Saved:
    """A task and an engine whose only weight is a text."""

    text = ""

    def save(self, folder: Path) -> None:
        (folder / "weights").write_text(self.text)

    def save_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        Path(folder, tag).write_text(self.text)

    def load_checkpoint(self, folder: str, tag: str, **options: Any) -> None:
        self.text = Path(folder, tag).read_text()


def start(context: Context, **options: Any) -> tuple[Saved, Checkpoints, TrainHistory]:
    saved: Any = Saved()
    checkpoints = Checkpoints(
        context, replace(OPTIONS, **options), WorkerInfo(0, 1, "cpu"), saved, saved
    )
    return saved, checkpoints, checkpoints.restore()


def test_a_killed_run_leaves_no_model_behind(
    context: Callable[..., Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    saved, checkpoints, history = start(context())
    for saved.text, is_best in (("one", False), ("two", True), ("three", False)):
        checkpoints.save_model(is_best, None)
        history.loss.append(0.0)
        checkpoints.save(history)
    saved.text = "four"
    checkpoints.save_model(True, None)  # and is killed before the checkpoint
    saved, checkpoints, history = start(context(2))
    assert (saved.text, len(history.loss)) == ("three", 3)
    history.loss.append(0.0)
    checkpoints.save(history)
    folders = list_checkpoints(checkpoints.context)
    assert [(folder / "best" / "weights").read_text() for folder in folders] == ["two", "two"]
    assert not any(map(find_damage, folders))
    assert sorted(checkpoints.folder.parent.glob("*/*")) == sorted(folders)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("method", "dtype", "stage", "offload", "used"),
    [
        ("lora", "bfloat16", None, "none", 0),
        ("lora", "float32", None, "optimizer", 1),
        ("lora", "float32", None, "parameters", 3),
        ("lora", "float32", 2, "none", 2),
        ("full", "float32", None, "none", 1),
        ("full", "float32", 0, "none", 0),
        ("full", "bfloat16", 0, "none", 1),
    ],
)
def test_what_is_sharded_by_default(
    method: Any, dtype: Any, stage: int | None, offload: Any, used: int
) -> None:
    """DeepSpeed shards the optimizer's states of bfloat16 weights at stage 0 too: `ratchet.models.engine`."""
    options = replace(OPTIONS, method=method, dtype=dtype, zero_stage=stage, offload=offload)
    assert options.shard_stage == used


def test_the_best_model_is_written_and_read_once(context: Callable[..., Context]) -> None:
    saved, checkpoints, history = start(context())
    saved.text = "best"
    checkpoints.save_model(True, None)
    for _ in range(3):
        history.loss.append(0.0)
        checkpoints.save(history)
    files = [folder / "best" / "weights" for folder in list_checkpoints(checkpoints.context)]
    assert len(files) == 2
    assert len({file.stat().st_ino for file in files}) == 1
    assert not any(find_damage(folder) for folder in list_checkpoints(checkpoints.context))
    files[0].write_text("tseb")
    assert all(find_damage(folder) for folder in list_checkpoints(checkpoints.context))


def test_two_attempts_at_once_keep_what_they_need(context: Callable[..., Context]) -> None:
    """The driver of the first was suspended and lost its lease; its workers train on."""
    old, first, history = start(context())

    def go(checkpoints: Checkpoints, own: TrainHistory, best: bool = False) -> None:
        own.loss += [0.0] * 10
        if best:
            checkpoints.save_model(True, None)
        checkpoints.save(own)

    old.text = "old"
    go(first, history, best=True)
    new, second, later = start(context(2))
    assert (new.text, len(later.loss)) == ("old", 10)
    for _ in range(3):
        go(first, history)  # removes the checkpoint that the second has resumed from
    go(second, later)
    assert second.best is not None
    assert (second.best / "weights").read_text() == "old"
    new.text = "new"
    go(second, later, best=True)
    for _ in range(3):
        with suppress(FileNotFoundError):  # the second has removed the best model of the first
            go(first, history)
    go(second, later)
    assert (second.best / "weights").read_text() == "new"
    assert not find_damage(second.best.parent)
    _, _, last = start(context(3))
    assert len(last.loss) >= 40
