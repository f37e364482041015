"""evaluate_answers: verify answers with the task's verifier, and report pass@k, scores, tokens and failures."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import MinLen

from ratchet.errors import ArtifactError
from ratchet.jobs.answers.chat_options import check_verifier
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Progress, Result

if TYPE_CHECKING:
    from ratchet.data.tasks.task import Task

MAX_CASES = 4

"""Maximum number of answers per label that the report shows."""

MAX_CASE_CHARACTERS = 1200


@dataclass(frozen=True)
class Config:
    k: Annotated[tuple[PositiveInt, ...], MinLen(1)] = (1, 2, 4, 8)
    """Values of k for pass@k. Values above the number of completions per question are skipped."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """The output of `generate`."""
    verifier_file: Path | None = None
    """The Python file with the verifier, if `prepare_tasks` got one."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    check_verifier(inputs.completions, inputs.verifier_file)


def list_metrics(config: Config) -> list[str]:
    names = [f"pass@{k}" for k in config.k]
    names += ["em", "f1", "lenient", "score", "questions", "questions_per_group", "latency"]
    names.append("truncated")
    return [*names, "prompt_tokens", "generated_tokens", "prompt_tokens_api"]


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ratchet.data.tables import list_shards, write_table
    from ratchet.data.tasks import read_task
    from ratchet.data.tasks.answers import VERIFICATIONS
    from ratchet.data.tasks.task import CORRECT, write_task_name

    task = read_task(inputs.completions, inputs.verifier_file)
    found = Answers()
    shards = list_shards(inputs.completions)
    for number, path in enumerate(shards, 1):
        rows = [found.add(task, row) for row in pq.read_table(path).to_pylist()]
        table = pa.Table.from_pylist(rows, VERIFICATIONS)
        write_table(context.out / "verifications" / path.name, table)
        context.progress(Progress(number, len(shards), "shards"))
    if not found.questions:
        raise ArtifactError(
            f"step {context.step}: no answers in {inputs.completions}; expected at least one; check the samples"
        )
    write_task_name(context.out, task.name, **task.source)
    metrics = found.compute_metrics(config.k)
    names = dict.fromkeys((*task.failures, *sorted(found.labels)))
    names.pop(CORRECT, None)
    counts = {}
    for k in sorted({1, len(found.questions[0])}):
        counts[k] = found.count(names, k)
    summary = {"metrics": metrics, "counts": counts, "questions": len(found.questions)}
    (context.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    by_label = []
    for name in (CORRECT, *names):
        share = round(found.labels[name] / found.labels.total(), 4)
        by_label.append({"label": name, "answers": found.labels[name], "share": share})
    unsolved = []
    for name, count in counts[k]["failures"].items():
        share = round(count / len(found.questions), 4)
        unsolved.append({"failure": name, "questions": count, "share": share})
    tables = {"answers by label": by_label, "unsolved questions by last failure": unsolved}
    return Result(metrics, tables, cases=found.cases)


class Answers:
    """Sums over the verified answers of all samples."""

    def __init__(self) -> None:
        self.questions: list[list[str]] = []
        """The labels of each question's completions, in the order of the completions."""
        self.truncated: list[list[bool]] = []
        """Whether each of these completions was truncated."""
        self.labels: Counter[str] = Counter()
        self.scores: Counter[str] = Counter()
        """Name of a score -> sum over all answers."""
        self.groups: set[str] = set()
        self.tokens: Counter[str] = Counter()
        """Name of a metric of tokens -> sum over samples, each averaged over its completions."""
        self.seconds: list[float | None] = []
        self.cases: dict[str, list[dict[str, Any]]] = {}

    def add(self, task: "Task", row: dict[str, Any]) -> dict[str, Any]:
        """Verify the completions of a sample and return a row of VERIFICATIONS."""
        gold = json.loads(row["gold"])
        labels = []
        scores = []
        cut = []
        for answers, truncated in zip(row["answers"], row["truncated"], strict=True):
            verified = task.verify(gold, answers)
            if len(verified) <= len(truncated):
                cut.append(truncated[-len(verified) :])
            else:  # one answer to several questions
                cut.append([any(truncated)] * len(verified))
            labels.append([one.label for one in verified])
            scores.append([[one.scores.get(name, 0.0) for name in task.scores] for one in verified])
            for own in scores[-1]:
                self.scores.update(dict(zip(task.scores, own, strict=True)))
            for label in dict.fromkeys(labels[-1]):
                self._add_case(row, answers, label)
        for own_labels in zip(*labels, strict=True):  # those of one question
            self.questions.append(list(own_labels))
            self.labels.update(own_labels)
        self.truncated += map(list, zip(*cut, strict=True))
        self._add_tokens(row)
        return {"id": row["id"], "group": row["group"], "verifications": labels, "scores": scores}

    def _add_tokens(self, row: dict[str, Any]) -> None:
        """Add the token counts. Tokens that a group's samples share are counted once."""
        each = len(row["answers"])
        if row["group"] in self.groups:
            self.tokens["prompt_tokens"] -= row["shared_tokens"]
        self.groups.add(row["group"])
        self.tokens["prompt_tokens"] += sum(row["new_prompt_tokens"]) / each
        self.tokens["generated_tokens"] += sum(row["generated_tokens"]) / each
        self.tokens["prompt_tokens_api"] += sum(row["prompt_tokens"]) / each
        self.seconds.append(row["seconds"])

    def _add_case(self, row: dict[str, Any], answers: Sequence[str], label: str) -> None:
        """Add an answer to the cases of its label, unless there are enough, or one of this sample."""
        from ratchet.data.tasks.task import CORRECT

        cases = self.cases.setdefault(label, [])
        if len(cases) == MAX_CASES or any(case["title"] == row["id"] for case in cases):
            return
        texts = {
            "prompt": ("\n\n".join(row["questions"]), False),
            label: ("\n\n".join(answers) or "(nothing)", label == CORRECT),
            "gold": (row["gold"], True),
        }
        columns = {}
        for name, (text, good) in texts.items():
            columns[name] = [{"text": _shorten(text), "good": good}]
        cases.append({"title": row["id"], "columns": columns})

    def count(self, names: Iterable[str], k: int) -> dict[str, Any]:
        """Count the questions that the newest k completions answer, and by the label of the newest one the others.
        names: failures to count. `truncated`: unsolved questions whose newest completion was truncated."""
        from ratchet.data.tasks.answers import count_failures
        from ratchet.data.tasks.task import CORRECT

        newest = [labels[-k:] for labels in self.questions]
        failed = count_failures(newest)
        cut = 0
        for labels, truncated in zip(newest, self.truncated, strict=True):
            cut += truncated[-1] and CORRECT not in labels
        failures = {name: failed[name] for name in names}
        passed = len(newest) - failed.total()
        return {"passed": passed, "failures": failures, "truncated": cut}

    def compute_metrics(self, ks: Sequence[int]) -> dict[str, float]:
        from ratchet.data.tasks.answers import pass_at_k
        from ratchet.data.tasks.task import CORRECT

        num_completions = len(self.questions[0])
        correct = [own.count(CORRECT) for own in self.questions]
        found = {}
        for k in ks:
            if k <= num_completions:
                solved = sum(pass_at_k(num_completions, count, k) for count in correct)
                found[f"pass@{k}"] = round(solved / len(correct), 6)
        for name, total in self.scores.items():
            found[name] = round(total / self.labels.total(), 6)
        found["truncated"] = round(sum(map(sum, self.truncated)) / self.labels.total(), 6)
        found["questions"] = len(correct)
        found["questions_per_group"] = round(len(correct) / len(self.groups), 4)
        for name, total in self.tokens.items():
            found[name] = round(total / len(self.groups), 4)
        seconds = [one for one in self.seconds if one is not None]
        if len(seconds) == len(self.seconds):
            found["latency"] = round(sum(seconds) / len(self.groups), 4)
        return found


def _shorten(text: str) -> str:
    if len(text) <= MAX_CASE_CHARACTERS:
        return text
    return text[:MAX_CASE_CHARACTERS] + " ..."


JOB = Job(
    "evaluate_answers",
    Config,
    Inputs,
    run,
    check=check,
    resources=("retries",),
    metrics=list_metrics,
)
