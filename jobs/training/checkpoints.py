"""Checkpoints of a training run: the state to resume from, the best model so far, and the models of chosen steps.

    work/train/<run>-<attempt>/step-<training steps>-<epoch>-<start>/    engine/, history.json, best/, DIGESTS.json
    work/checkpoint-step-<training step>/                                the model of an evaluation (`keeps_all`)

Both are written under another name, synced, and renamed when they are complete. A checkpoint is loaded only if all its
files match their digests; otherwise the previous one is loaded (the last two are kept), or training starts again. An
attempt resumes from checkpoints of all attempts, and removes none of later ones: the workers of an attempt whose driver
was suspended, and lost its lease, may still train. No generator state is saved: random numbers are a function of the
seed and the training step (`trainer.seed_generators`).
"""

import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.jobs.training.worker import WorkerInfo, gather_objects
from ratchet.models import engine
from ratchet.orchestrator.job_interface import Context, link, make_folder
from ratchet.orchestrator.job_interface.digests import (
    find_damage,
    hash_files,
    publish,
    read_digests,
    select_digests,
)

LOG = logging.getLogger(__name__)

if TYPE_CHECKING:  # it imports the model libraries
    from ratchet.jobs.training.task import FinetuneTask

KEPT = 2
"""Number of checkpoints to keep: the last one, and the previous one in case the last one is damaged."""


def checkpoint_folder(context: Context, step: int) -> Path:
    """Return the folder of the model of the evaluation after a training step, while the job runs."""
    return context.work / f"checkpoint-step-{step}"


def run_folder(context: Context) -> Path:
    """Return the folder of the checkpoints of an attempt."""
    return context.work.absolute() / "train" / f"{context.step_id[:32]}-{context.attempt}"


def list_checkpoints(context: Context) -> list[Path]:
    """Return the checkpoints of all attempts, fewest training steps first. Their files may still have to be fetched."""
    runs = run_folder(context).parent
    found = []
    for run in context.files.list_sent(runs):
        for name in context.files.list_sent(runs / run):
            if name.startswith("step-"):
                found.append(runs / run / name)
    return sorted(found, key=lambda folder: folder.name)


def read_history(folder: Path) -> TrainHistory:
    """Read the history in a checkpoint."""
    return TrainHistory(**json.loads((folder / "history.json").read_text()))


def find_model_damage(context: Context, config: FinetuneConfig, checkpoint: Path) -> str:
    """Return the path of a missing or damaged file in the models of evaluations (`keeps_all`) that a run resumed from
    `checkpoint` does not write again; an empty string if there is none."""
    if not config.keeps_all:
        return ""
    for step in read_history(checkpoint).evaluated_at:
        folder = checkpoint_folder(context, step)
        context.files.fetch(folder)
        damage = find_damage(folder)
        if damage:
            return f"{folder.name}/{damage}"
    return ""


@dataclass
class Checkpoints:
    """Writes and restores the checkpoints of one worker."""

    context: Context
    config: FinetuneConfig
    worker: WorkerInfo
    task: "FinetuneTask"
    engine: Any

    def __post_init__(self) -> None:
        self.folder = run_folder(self.context)
        make_folder(self.folder)  # synced, as a checkpoint in it is
        self.files = self.context.files
        # Part of checkpoint names, so that restarted workers never write into a half-written folder.
        self.start_id = gather_objects(f"{self.context.attempt}-{os.urandom(3).hex()}")[0]
        # Folders of the model that was saved last, until it is moved into a checkpoint, and of the best model.
        self.made = self.folder / f"unfinished-model-{self.start_id}"
        self.best: Path | None = None
        self.unfit: set[Path] = set()
        """Checkpoints that another number of workers, or another stage, can still resume from."""
        self.best_digests: dict[str, Any] = {}
        """Digests of the files below `best`, if they are known from a checkpoint."""

    def save_model(self, is_best: bool, step: int | None) -> None:
        """Write the current model: as the best one if `is_best`, and as the model of a training step unless `step` is
        None. Called on one worker. A restarted worker replaces what it wrote before."""
        self.made.mkdir(parents=True)
        self.task.save(self.made)
        if step is not None:
            fresh = self.context.work / f"unfinished-checkpoint-{self.start_id}"
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(self.made, fresh)
            target = checkpoint_folder(self.context, step)
            publish(fresh, target, hash_files(fresh))
            self.files.send(target)
        if is_best:
            # One that was taken from a checkpoint, and is in none of this start yet.
            if self.best is not None and self.best.parent == self.folder:
                shutil.rmtree(self.best)
            self.best = self.made
            self.best_digests = {}
        else:
            shutil.rmtree(self.made)

    def save(self, history: TrainHistory) -> None:
        """Write a checkpoint: optimizer state, trained weights, history, best model. All workers call it at the same
        training step. Each worker writes, hashes and sends its own files, and the first one moves them together."""
        name = f"step-{len(history.loss):08d}-{history.epoch}-{self.start_id}"
        target = self.folder / name
        fresh = self.folder / f"unfinished-{name}"
        own = fresh / f"worker-{self.worker.rank}"
        own.mkdir(parents=True)
        self.engine.save_checkpoint(
            str(own), tag="engine", exclude_frozen_parameters=True, save_latest=False
        )
        if self.worker.rank == 0:
            history.workers = self.worker.world_size
            history.shard_stage = self.config.shard_stage
            (own / "history.json").write_text(json.dumps(vars(history)))
            if self.best is not None:
                if self.best.parent == self.folder:
                    shutil.move(self.best, own / "best")
                else:  # in an earlier checkpoint
                    shutil.copytree(self.best, own / "best", copy_function=link)
                self.best = target / "best"
        hashed = hash_files(own, self.best_digests)
        self.best_digests = select_digests(hashed, "best")
        self.files.send(own, target)
        digests = gather_objects(hashed)
        if self.worker.rank != 0:
            if self.files.downloads:
                shutil.rmtree(own)
            return
        everything: dict[str, Any] = {}
        for rank, files in enumerate(digests):
            everything |= files
            if rank and self.files.downloads:
                continue  # they are fetched if this worker needs them
            for file in files:
                (fresh / file).parent.mkdir(parents=True, exist_ok=True)
                (fresh / f"worker-{rank}" / file).rename(fresh / file)
            shutil.rmtree(fresh / f"worker-{rank}")
        publish(fresh, target, everything)
        self.files.send(target)
        if self.context.logs is not None:
            self.files.send(self.context.logs)
        known = []
        for one in list_checkpoints(self.context):
            if _attempt(one) <= self.context.attempt and one not in self.unfit:
                known.append(one)
        for old in sorted(known, key=_attempt)[:-KEPT]:
            self.files.discard(old)

    def restore(self) -> TrainHistory:
        """Load the last intact checkpoint. Return its history, or a new one if there is no checkpoint. Collective.

        Checkpoints fit any number of workers, but with ZeRO-3, or few weights, only the number that wrote them. Those
        of ZeRO 1 and 2 fit both, and those of 0 and 3 only their own stage."""
        if self.worker.rank == 0 or self.files.downloads:
            for unfinished in self.folder.parent.glob("*/unfinished-*"):
                if _attempt(unfinished) <= self.context.attempt:
                    shutil.rmtree(unfinished, ignore_errors=True)
        for folder in reversed(gather_objects(list_checkpoints(self.context))[0]):
            self.files.fetch(folder)
            if self._is_intact(folder):
                history = read_history(folder)
                stage = self.config.shard_stage
                same_workers = history.workers == self.worker.world_size
                if history.shard_stage == stage and (same_workers or not stage):
                    self.engine.load_checkpoint(str(folder), tag="engine", load_module_strict=False)
                elif history.shard_stage in (1, 2) and self._can_reshard:
                    self._load_resharded(folder)
                else:
                    self.unfit.add(folder)
                    continue
                self._take_best(folder)
                history.resumed.append(len(history.loss))
                return history
        return TrainHistory()

    def _take_best(self, checkpoint: Path) -> None:
        """Take the best model of a checkpoint, which another attempt may remove."""
        self.best = None
        if self.worker.rank == 0 and (checkpoint / "best").exists():
            self.best = self.folder / f"unfinished-best-{self.start_id}"
            shutil.copytree(checkpoint / "best", self.best, copy_function=link)
            self.best_digests = read_digests(checkpoint, "best")

    @property
    def _can_reshard(self) -> bool:
        workers = self.worker.world_size
        stage = self.config.shard_stage
        return stage in (1, 2) and engine.can_load_merged(self.task.model, workers)

    def _load_resharded(self, folder: Path) -> None:
        """Load a checkpoint that another number of workers wrote. Collective."""
        whole = self.folder / f"unfinished-whole-{self.start_id}"
        if self.worker.rank == 0:
            engine.merge_shards(folder / "engine", whole)
            self.files.send(whole)
        gather_objects(None)  # the others wait for it
        self.files.fetch(whole)
        engine.load_merged(self.engine, whole)
        gather_objects(None)
        if self.worker.rank == 0:
            self.files.discard(whole)

    def _is_intact(self, folder: Path) -> bool:
        """Return whether a checkpoint is intact. If not, remove it and log the damage. Collective."""
        damage = find_damage(folder, self.worker.rank, self.worker.world_size)
        if self.worker.rank == 0:
            damage = damage or find_model_damage(self.context, self.config, folder)
        found = [one for one in gather_objects(damage) if one]
        if found and self.worker.rank == 0:
            LOG.warning(
                "step %s: checkpoint %s is not used: %s", self.context.step, folder.name, found[0]
            )
            self.files.discard(folder)
        return not found


def _attempt(checkpoint: Path) -> int:
    """Return the number of the attempt that wrote a checkpoint, finished or not."""
    return int(checkpoint.parent.name.rpartition("-")[2])
