"""A simulation of the published retrieval presets on 1 to 64 GPUs of one machine each: idle GPUs and model loads, and a
Gantt chart.

    python -m benchmarks.orchestrator.presets EEDI [--preset misconceptions-cv] [--chart docs/gantt.svg]

EEDI: the folder of the competition's data. The steps are those of the recipe with the preset's settings, and the rows
those that `prepare` makes of the data. The schedule is that of orchestrator/execution/schedule.py. Two schedules are
compared: a shard is the unit of work, every step asks for all GPUs and loads its model (`shards`), and that of today
(`pieces`).

Seconds are foreseen, not measured: tokens x weights x operations / speed. A token costs 2 operations per weight in a
forward pass, and 8 in training (forward, the forward pass of gradient checkpointing, and twice that backward, of which
LoRA needs most). A text has a token per 3.5 characters, and --prompt tokens beside it. A load takes --start seconds for
the processes, and the bytes of the weights in bfloat16 at --read GB/s for all workers together, since they read the
same file. A merge reads and writes these bytes, at --read and --write GB/s. Other steps take --other seconds on a CPU.
Training on several GPUs exchanges the gradients of the adapter, which is neglected. A GPU is idle if no step holds it,
or if its step has no piece left for it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import ratchet
from ratchet.data.tables import read_shards
from ratchet.jobs.distributed.piece_size import MODEL_PIECES, choose_piece_rows
from ratchet.orchestrator import recipe
from ratchet.orchestrator.execution.schedule import Demand, Status, combine, finished, to_start
from ratchet.orchestrator.step import Output, Step

WEIGHTS = {"BAAI/bge-en-icl": 7.1e9, "Qwen/Qwen2.5-14B-Instruct": 14.8e9}
"""Model of the presets -> its number of weights."""
GPUS = (1, 2, 4, 8, 64)
COLORS = {"load": "#e0b04a", "embed": "#3b7dd8", "rerank": "#2a9d6f", "train": "#8a63c9"}


@dataclass(frozen=True)
class Work:
    """What a step does: seconds of one GPU, in equal pieces, or seconds of a CPU."""

    kind: str
    seconds: float
    pieces: int = 1
    load: float = 0.0
    model: str = ""
    """What its workers load. Empty: they use no GPU."""


@dataclass
class Schedule:
    """A simulated run."""

    seconds: float = 0.0
    loads: int = 0
    """Number of steps, or groups of steps, that load a model, trainings aside."""
    bars: list[tuple[int, str, float, float]] = field(default_factory=list)
    """(GPU, kind of work, begin, end)"""

    def shares(self, gpus: int) -> tuple[float, float]:
        """Return the shares of GPU time, while no step trains, in which GPUs are idle, and in which they load."""
        training = {(start, end) for _, kind, start, end in self.bars if kind == "train"}
        whole = gpus * (self.seconds - sum(end - start for start, end in training))
        spent = dict.fromkeys(COLORS, 0.0)
        for _, kind, start, end in self.bars:
            spent[kind] += end - start
        busy = sum(spent.values()) - spent["train"]
        return 1 - busy / whole, spent["load"] / whole


def simulate(steps: Sequence[Step], works: Mapping[str, Work], gpus: int, pieces: bool) -> Schedule:
    """pieces: whether steps ask for the GPUs that have a piece, and ready steps with one model load it once."""
    made = Schedule()
    parents = {step.name: {parent.name for parent in step.parents} for step in steps}
    status = {name: Status.PENDING if parents[name] else Status.READY for name in parents}
    demand = {}
    for name, work in works.items():
        workers = min(gpus, work.pieces) if pieces else gpus
        asked = workers if work.model or not pieces else 0
        demand[name] = Demand(1, asked)
    loads = {name: work.model for name, work in works.items() if pieces and work.model}
    loads = {name: model for name, model in loads.items() if works[name].kind != "train"}
    free = list(range(gpus))
    ends: list[tuple[float, str, list[int], list[str]]] = []
    now = 0.0
    while not finished(status):
        together = combine(status, loads, demand)
        shown = dict(status)
        for others in together.values():
            shown |= dict.fromkeys(others, Status.PENDING)
        for name in to_start(shown, demand, Demand(10_000, gpus)):
            others = together.get(name, [])
            status[name] = Status.RUNNING
            status |= dict.fromkeys(others, Status.TOGETHER)
            held = sorted(free)[: int(demand[name].gpus)]
            free = [gpu for gpu in free if gpu not in held]
            end = now + run([works[one] for one in (name, *others)], held, now, made)
            heapq.heappush(ends, (end, name, held, others))
        now, name, held, others = heapq.heappop(ends)
        status[name] = Status.DONE
        free += held
        for other in others:
            status[other] = Status.READY
            del loads[other]
            demand[other] = Demand(1)
            works = {**works, other: Work(works[other].kind, 0.5)}
        for other, needed in parents.items():
            done = all(status[parent] is Status.DONE for parent in needed)
            if status[other] is Status.PENDING and done:
                status[other] = Status.READY
    made.seconds = now
    return made


def run(works: Sequence[Work], held: Sequence[int], now: float, made: Schedule) -> float:
    """Add the bars of a step, with the works that it does too. Return its seconds."""
    first = works[0]
    if not first.model:
        return first.seconds
    made.loads += first.kind != "train"
    pieces = [work.seconds / work.pieces for work in works for _ in range(work.pieces)]
    busy = [0.0] * len(held)
    for piece in sorted(pieces, reverse=True):
        busy[busy.index(min(busy))] += piece
    if first.kind == "train":
        busy = [first.seconds / len(held)] * len(held)
    for gpu, seconds in zip(held, busy, strict=True):
        if seconds:
            made.bars.append((gpu, "load", now, now + first.load))
            made.bars.append((gpu, first.kind, now + first.load, now + first.load + seconds))
    return first.load + max(busy)


class Foresight:
    """The work of the steps of a run."""

    def __init__(self, folder: Path, weights: Mapping[Path, float], given: argparse.Namespace):
        """folder: the output of `prepare`. weights: model folder -> number of weights."""
        self.weights = weights
        self.given = given
        self.rows: dict[str, int] = {}
        self.tokens: dict[str, float] = {}
        for part in folder.iterdir():
            if part.is_dir():
                texts = read_shards(part, ["text"])["text"]
                self.rows[part.name] = len(texts)
                mean = float(pc.mean(pc.utf8_length(texts)).as_py())
                self.tokens[part.name] = mean / 3.5 + given.prompt

    def foresee(self, step: Step) -> Work:
        job = step.job.name
        if job == "embed":
            part = self._find_part(step, "texts")
            tokens = self.rows[part] * self.tokens[part]
            return self._infer(step, "embed", "model", self.rows[part], tokens)
        if job == "rerank":
            part = self._find_part(step, "lists")
            depth = step.config.depth or 16  # a mined list: the positive and 15 negatives
            pairs = self.rows[part] * depth
            tokens = pairs * (self.tokens[part] + self.tokens["corpus"])
            return self._infer(step, "rerank", "model", self.rows[part], tokens)
        if job == "finetune_embedder":
            texts = 1 + step.config.num_negatives
            row = self.tokens["train"] + (1 + texts) * self.tokens["corpus"]
            return self._train(step, row * self.rows["train"])
        if job == "finetune_reranker":
            row = (1 + step.config.num_negatives) * (self.tokens["train"] + self.tokens["corpus"])
            return self._train(step, row * self.rows["train"])
        if job == "merge":
            size = 2 * self._count_weights(step.inputs["base"]) / 1e9
            return Work("merge", size / self.given.read + size / self.given.write)
        return Work(job, self.given.other)

    def _infer(self, step: Step, kind: str, field: str, rows: int, tokens: float) -> Work:
        weights = self._count_weights(step.inputs[field])
        size = choose_piece_rows(rows, MODEL_PIECES) or rows
        seconds = 2 * tokens * weights / (self.given.tflops * 1e12)
        load = self.given.start + 2 * weights / 1e9 / self.given.read
        model = " + ".join(str(step.inputs.get(one)) for one in (field, "adapter"))
        return Work(kind, seconds, ceil(rows / size), load, model)

    def _train(self, step: Step, tokens: float) -> Work:
        weights = self._count_weights(step.inputs["base"])
        seconds = 8 * tokens * weights * step.config.epochs / (self.given.tflops * 1e12)
        load = self.given.start + 2 * weights / 1e9 / self.given.read
        return Work("train", seconds, step.config.batch_size, load, "trained")

    def _count_weights(self, model: Any) -> float:
        """Return the weights of a model, or of the base that it was made from."""
        while isinstance(model, Output):
            inputs = model.step.inputs
            model = inputs.get("base") or inputs.get("model")
        return self.weights[model.path]

    def _find_part(self, step: Step, field: str) -> str:
        """Return the part of the data that an input was made from."""
        ref = step.inputs[field]
        while isinstance(ref, Output) and ref.step.job.name != "prepare":
            inputs = ref.step.inputs
            ref = inputs.get("lists") or inputs.get("queries")
        assert isinstance(ref, Output)
        assert ref.part is not None
        return ref.part


def build_steps(preset: str, data: Path, place: Path) -> list[Step]:
    """Build the steps of a preset, with a folder in `place` in place of each model."""
    lines = [f"data={data}"]
    for line in recipe.read_settings(recipe.find_settings(f"published/{preset}")):
        name, _, value = line.partition("=")
        if value in WEIGHTS:
            folder = place / value
            folder.mkdir(parents=True, exist_ok=True)
            about = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
            (folder / "config.json").write_text(json.dumps(about))
            value = str(folder)
        lines.append(f"{name}={value}")
    return recipe.build(recipe.find("misconceptions"), recipe.Settings.read(lines))[0]


def draw(schedules: Mapping[str, Schedule], gpus: int, seconds: float) -> str:
    """Draw the bars of several schedules on one axis of time, as SVG."""
    width, row, left = 1000.0, 12, 70
    scale = (width - left - 10) / seconds
    lines = []
    top = 24
    for name, schedule in schedules.items():
        lines.append(f'<text x="4" y="{top - 8}">{name}: {schedule.seconds / 3600:.1f} h</text>')
        for gpu in range(gpus):
            y = top + gpu * row
            lines.append(f'<text x="4" y="{y + 10}">GPU {gpu}</text>')
            lines.append(
                f'<rect x="{left}" y="{y}" width="{schedule.seconds * scale:.1f}" height="{row - 2}" fill="#eee"/>'
            )
        for gpu, kind, start, end in schedule.bars:
            x, long = left + start * scale, max(0.2, (end - start) * scale)
            color = COLORS[kind]
            lines.append(
                f'<rect x="{x:.1f}" y="{top + gpu * row}" width="{long:.1f}" height="{row - 2}" fill="{color}"/>'
            )
        top += gpus * row + 34
    for number, (kind, color) in enumerate({**COLORS, "idle": "#eee"}.items()):
        x = left + 90 * number
        lines.append(f'<rect x="{x}" y="{top - 18}" width="12" height="12" fill="{color}"/>')
        lines.append(f'<text x="{x + 16}" y="{top - 8}">{kind}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {top}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="11">', *lines, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", default="misconceptions-cv")
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--tflops", type=float, default=150.0, help="speed of a GPU")
    parser.add_argument("--prompt", type=float, default=60.0)
    parser.add_argument("--start", type=float, default=10.0)
    parser.add_argument("--read", type=float, default=2.0)
    parser.add_argument("--write", type=float, default=1.0)
    parser.add_argument("--other", type=float, default=3.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        data = given.data.absolute()
        steps = build_steps(given.preset, data, place / "models")
        prepared = ratchet.run("jobs/prepare", store=place / "store", data=str(data))
        weights = {place / "models" / model: count for model, count in WEIGHTS.items()}
        foresight = Foresight(prepared.steps["prepare"].path, weights, given)
        works = {step.name: foresight.foresee(step) for step in steps}
    print(f"rows: {foresight.rows}")
    print(f"steps: {dict(Counter(step.job.name for step in steps))}")
    print(f"{'':8}{'shards':>36}{'pieces':>36}")
    head = f"{'hours':>10}{'idle':>8}{'loading':>10}{'loads':>8}"
    print(f"{'GPUs':>8}{head}{head}")
    drawn = {}
    for gpus in GPUS:
        cells = ""
        for pieces in (False, True):
            own = works
            if not pieces:
                own = {name: one_piece(work) for name, work in works.items()}
            found = simulate(steps, own, gpus, pieces)
            idle, loading = found.shares(gpus)
            cells += f"{found.seconds / 3600:10.2f}{idle:8.0%}{loading:10.0%}{found.loads:8}"
            if gpus == 8:
                drawn[LABELS[pieces]] = found
        print(f"{gpus:8}{cells}")
    if given.chart:
        longest = max(schedule.seconds for schedule in drawn.values())
        given.chart.write_text(draw(drawn, 8, longest))


LABELS = {False: "shards, a step at a time", True: "pieces, one load for ready steps"}


def one_piece(work: Work) -> Work:
    """Return the work with a shard as its only piece. Training is divided as before."""
    if work.kind == "train":
        return work
    return Work(work.kind, work.seconds, 1, work.load, work.model)


if __name__ == "__main__":
    main()
