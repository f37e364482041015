"""evaluate_answers: verify answers with the task's verifier, and report pass@k, scores, tokens and failures."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, MinLen

from ratchet.errors import ArtifactError
from ratchet.orchestrator.job_interface import Context, Job, Progress, Result

if TYPE_CHECKING:
    from ratchet.data.tasks.task import Task, Verification

MAX_CASES = 4

"""Maximum number of answers per label that the report shows."""

MAX_CASE_CHARACTERS = 1200


@dataclass(frozen=True)
class Config:
    k: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (1, 2, 4, 8)
    """Values of k for pass@k. Values above the number of completions per question are skipped."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """The output of `generate`."""


def list_metrics(config: Config) -> list[str]:
    scores = ("em", "f1", "lenient", "score", "questions", "questions_per_group", "latency")
    tokens = ("prompt_tokens", "generated_tokens", "prompt_tokens_api")
    return [*(f"pass@{k}" for k in config.k), *scores, *tokens]


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ratchet.data.tables import list_shards, write_table
    from ratchet.data.tasks import read_task
    from ratchet.data.tasks.answers import VERIFICATIONS
    from ratchet.data.tasks.task import read_task_file, write_task_name

    statistics = _Statistics(read_task(inputs.completions))
    shards = list_shards(inputs.completions)
    for number, path in enumerate(shards, 1):
        rows = []
        for row in pq.read_table(path).to_pylist():
            rows.append(statistics.add(row))
        write_table(
            context.out / "verifications" / path.name, pa.Table.from_pylist(rows, VERIFICATIONS)
        )
        context.progress(Progress(number, len(shards), "shards"))
    if not statistics.questions:
        raise ArtifactError(
            f"step {context.step}: no answers in {inputs.completions}; expected at least one; check the samples"
        )
    write_task_name(context.out, **read_task_file(inputs.completions))
    metrics = statistics.metrics(config.k)
    failures = statistics.failures()
    summary = {"metrics": metrics, "failures": failures, "questions": len(statistics.questions)}
    (context.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return Result(metrics, statistics.tables(failures), cases=statistics.cases)


class _Statistics:
    """Statistics over the verifications of all questions."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.questions: list[list[str]] = []
        """The labels of each question's completions, in the order of the completions."""
        self.labels: Counter[str] = Counter()
        self.scores: dict[str, float] = dict.fromkeys(task.scores, 0.0)
        self.groups: set[str] = set()
        self.totals: dict[str, float] = defaultdict(float)
        """Name of a metric of tokens, or `latency` (seconds) -> sum over samples."""
        self.timed = True
        self.cases: dict[str, list[dict[str, Any]]] = {}

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        """Verify the completions of a sample and return a row of VERIFICATIONS."""
        gold = json.loads(row["gold"])
        verified = [
            self._verify(gold, *own) for own in zip(row["answers"], row["truncated"], strict=True)
        ]
        self.questions += [[own[q].label for own in verified] for q in range(len(verified[0]))]
        for own in verified:
            for verification in own:
                self.labels[verification.label] += 1
                for name, value in verification.scores.items():
                    self.scores[name] += value
        self._count_tokens(row)
        self._add_cases(row, verified)
        labels = []
        scores = []
        for own in verified:
            labels.append([one.label for one in own])
            scores.append([self._list_scores(one) for one in own])
        return {"id": row["id"], "group": row["group"], "verifications": labels, "scores": scores}

    def _list_scores(self, verification: Verification) -> list[float]:
        return [verification.scores.get(name, 0.0) for name in self.task.scores]

    def _verify(self, gold: Any, answers: list[str], truncated: list[bool]) -> list[Verification]:
        """Verify a completion. A wrong answer in a truncated turn gets the label `TRUNCATED`."""
        from ratchet.data.tasks.answers import TRUNCATED
        from ratchet.data.tasks.task import CORRECT

        found = self.task.verify(gold, answers)
        cut = truncated[-len(found) :]
        made: list[Verification] = []
        for v, c in zip(found, cut, strict=True):
            made.append(replace(v, label=TRUNCATED) if c and v.label != CORRECT else v)
        return made

    def _count_tokens(self, row: dict[str, Any]) -> None:
        """Add the token counts, averaged over completions. Tokens that a group's samples share are counted once."""
        num_completions = len(row["answers"])
        if row["group"] in self.groups:
            shared = row["shared_tokens"]
        else:
            shared = 0
        self.groups.add(row["group"])
        self.totals["prompt_tokens"] += sum(row["new_prompt_tokens"]) / num_completions - shared
        self.totals["generated_tokens"] += sum(row["generated_tokens"]) / num_completions
        self.totals["prompt_tokens_api"] += sum(row["prompt_tokens"]) / num_completions
        self.totals["latency"] += row["seconds"] or 0.0
        self.timed = self.timed and row["seconds"] is not None

    def _add_cases(self, row: dict[str, Any], verified: Sequence[Sequence[Verification]]) -> None:
        from ratchet.data.tasks.task import CORRECT

        for answers, verifications in zip(row["answers"], verified, strict=True):
            for label in dict.fromkeys(one.label for one in verifications):
                cases = self.cases.setdefault(label, [])
                if len(cases) < MAX_CASES and all(case["title"] != row["id"] for case in cases):
                    prompt = {"text": _shorten("\n\n".join(row["questions"])), "good": False}
                    answer = {
                        "text": _shorten("\n\n".join(answers)) or "(nothing)",
                        "good": label == CORRECT,
                    }
                    gold = {"text": _shorten(row["gold"]), "good": True}
                    cases.append(
                        {
                            "title": row["id"],
                            "columns": {"prompt": [prompt], label: [answer], "gold": [gold]},
                        }
                    )

    def metrics(self, ks: Sequence[int]) -> dict[str, float | int | str]:
        from ratchet.data.tasks.answers import pass_at_k
        from ratchet.data.tasks.task import CORRECT

        num_completions = len(self.questions[0])
        correct = [own.count(CORRECT) for own in self.questions]
        found: dict[str, float | int | str] = {}
        for k in (k for k in ks if k <= num_completions):
            found[f"pass@{k}"] = round(
                sum(pass_at_k(num_completions, c, k) for c in correct) / len(correct), 6
            )
        found |= {
            name: round(total / self.labels.total(), 6) for name, total in self.scores.items()
        }
        means = {}
        for name, total in self.totals.items():
            means[name] = round(total / len(self.groups), 4)
        latency = means.pop("latency")
        found |= {
            "questions": len(self.questions),
            "questions_per_group": round(len(correct) / len(self.groups), 4),
        }
        return found | means | ({"latency": latency} if self.timed else {})

    def failures(self) -> dict[str, int]:
        """Return failure -> questions without a correct completion whose last one has it, in the task's order."""
        from ratchet.data.tasks.answers import TRUNCATED, count_failures
        from ratchet.data.tasks.task import CORRECT

        counts = count_failures(self.questions)
        known = (*self.task.failures, TRUNCATED)
        found: dict[str, int] = {}
        for name in (*known, *sorted({*self.labels} - {CORRECT, *known})):
            found[name] = counts[name]
        return found

    def tables(self, failures: dict[str, int]) -> dict[str, list[dict[str, Any]]]:
        from ratchet.data.tasks.task import CORRECT

        labels = {name: self.labels[name] for name in (CORRECT, *failures)}

        def share(
            label: str, counted: str, counts: dict[str, int], total: int
        ) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            for name, n in counts.items():
                found.append({label: name, counted: n, "share": round(n / total, 4)})
            return found

        return {
            "answers by label": share("label", "answers", labels, self.labels.total()),
            "unsolved questions by last failure": share(
                "failure", "questions", failures, len(self.questions)
            ),
        }


def _shorten(text: str) -> str:
    if len(text) <= MAX_CASE_CHARACTERS:
        return text
    return text[:MAX_CASE_CHARACTERS] + " ..."


JOB = Job(
    "evaluate_answers",
    config=Config,
    inputs=Inputs,
    run=run,
    resources=("retries",),
    metrics=list_metrics,
)
