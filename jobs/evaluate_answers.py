"""evaluate_answers: answers to verdicts by the task's own judge; pass@k, scores, tokens, and what failed and how."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.job import BadArtifact, BadInput, Context, Job, Progress, Result

if TYPE_CHECKING:
    from data.tasks.task import Task, Verdict

SHOWN = 4
"""Answers of each kind in the report."""
SHOWN_CHARACTERS = 1200


@dataclass(frozen=True)
class Config:
    k: tuple[int, ...] = (1, 2, 4, 8)
    """pass@k for those of them that the samples allow."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """As `generate` writes them."""


def check(config: Config, inputs: Inputs) -> None:
    if not config.k or min(config.k) < 1:
        raise BadInput(f"evaluate_answers.k: {config.k} given; expected whole numbers of 1 or more")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from data.tables import shard_paths, write_table
    from data.tasks import named
    from data.tasks.answers import VERDICTS
    from data.tasks.task import read_name, write_name

    name = read_name(inputs.completions)
    tally = _Tally(named(name))
    for number, path in enumerate(shards := shard_paths(inputs.completions), 1):
        rows = [tally.add(row) for row in pq.read_table(path).to_pylist()]
        write_table(context.out / "verdicts" / path.name, pa.Table.from_pylist(rows, VERDICTS))
        context.progress(Progress(number, len(shards), "shards"))
    if not tally.questions:
        raise BadArtifact(f"step {context.step}: no answers in {inputs.completions}; expected some")
    write_name(context.out, name)
    metrics = tally.metrics(config.k)
    summary = {"metrics": metrics, "failures": tally.failed(), "questions": len(tally.questions)}
    (context.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return Result(
        metrics,
        {"verdicts": tally.table(), "questions without a correct answer, by their newest one": tally.newest()},
        examples=tally.cards,
    )


class _Tally:
    """Verdicts of questions, added up."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.questions: list[list[str]] = []
        """Verdicts of each question's samples, the newest last."""
        self.answers: Counter[str] = Counter()
        self.scores: dict[str, float] = dict.fromkeys(task.scores, 0.0)
        self.groups: dict[str, list[float]] = {}
        """Of each group: prompt tokens without what is shared twice, generated ones, prompt tokens as services count,
        seconds, examples."""
        self.timed = True
        self.cards: dict[str, list[dict[str, Any]]] = {}

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        """Judges an example's samples; a row of VERDICTS."""
        gold = json.loads(row["gold"])
        judged = [self.task.judge(gold, answers) for answers in row["answers"]]
        self.questions += [[own[q].name for own in judged] for q in range(len(judged[0]))]
        for own in judged:
            for verdict in own:
                self.answers[verdict.name] += 1
                for name, value in verdict.scores.items():
                    self.scores[name] += value
        self._count_tokens(row)
        self._show(row, judged)
        return {
            "id": row["id"],
            "group": row["group"],
            "verdicts": [[verdict.name for verdict in own] for own in judged],
            "scores": [[[v.scores.get(name, 0.0) for name in self.task.scores] for v in own] for own in judged],
        }

    def _count_tokens(self, row: dict[str, Any]) -> None:
        group = self.groups.setdefault(row["group"], [0.0, 0.0, 0.0, 0.0, 0.0])
        samples = len(row["answers"])
        shared = row["shared_tokens"] if group[4] else 0
        group[0] += sum(row["new_prompt_tokens"]) / samples - shared
        group[1] += sum(row["generated_tokens"]) / samples
        group[2] += sum(row["prompt_tokens"]) / samples
        group[3] += row["seconds"] or 0.0
        group[4] += 1
        self.timed = self.timed and row["seconds"] is not None

    def _show(self, row: dict[str, Any], judged: Sequence[Sequence[Verdict]]) -> None:
        for answers, verdicts in zip(row["answers"], judged, strict=True):
            for name in dict.fromkeys(verdict.name for verdict in verdicts):
                cards = self.cards.setdefault(name, [])
                if len(cards) < SHOWN and all(card["title"] != row["id"] for card in cards):
                    good = name == "correct"
                    asked = {"text": _short("\n\n".join(row["questions"])), "good": False}
                    said = {"text": _short("\n\n".join(answers)) or "(nothing)", "good": good}
                    wanted = {"text": _short(row["gold"]), "good": True}
                    cards.append({"title": row["id"], "columns": {"asked": [asked], name: [said], "gold": [wanted]}})

    def metrics(self, ks: Sequence[int]) -> dict[str, float | int | str]:
        from data.tasks.answers import pass_at_k

        samples = len(self.questions[0])
        correct = [own.count("correct") for own in self.questions]
        found: dict[str, float | int | str] = {}
        for k in ks:
            if k <= samples:
                found[f"pass@{k}"] = round(sum(pass_at_k(samples, c, k) for c in correct) / len(correct), 6)
        for name, total in self.scores.items():
            found[name] = round(total / self.answers.total(), 6)
        columns = list(zip(*self.groups.values(), strict=True))
        groups = len(self.groups)
        found["questions"] = len(self.questions)
        found["questions a group"] = round(len(self.questions) / groups, 4)
        found["prompt tokens"] = round(sum(columns[0]) / groups, 4)
        found["generated tokens"] = round(sum(columns[1]) / groups, 4)
        found["prompt tokens, api"] = round(sum(columns[2]) / groups, 4)
        found["generated tokens, api"] = found["generated tokens"]
        found["dependency tokens"] = 0
        if self.timed:
            found["latency"] = round(sum(columns[3]) / groups, 4)
        return found

    def failed(self) -> dict[str, int]:
        """Of all questions' newest answers where none was correct, by verdict, in the task's order."""
        from data.tasks.answers import failures

        counts = failures(self.questions)
        return {name: counts[name] for name in self.task.verdicts}

    def newest(self) -> list[dict[str, Any]]:
        total = len(self.questions)
        return [{"verdict": name, "questions": n, "share": round(n / total, 4)} for name, n in self.failed().items()]

    def table(self) -> list[dict[str, Any]]:
        total = self.answers.total()
        names = ("correct", *self.task.verdicts)
        return [{"verdict": n, "answers": self.answers[n], "share": round(self.answers[n] / total, 4)} for n in names]


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " ..."


JOB = Job("evaluate_answers", version=1, config=Config, inputs=Inputs, run=run, check=check)
