"""Word problems: finetune on the official solutions, and evaluate on the test set before and after."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval

from ratchet.jobs.answers import sft
from ratchet.jobs.pretrained import pretrained
from ratchet.orchestrator.step import Seed, Summary, step
from ratchet.recipes._answering import (
    evaluate_model,
    learn_from_teacher,
    make_row,
    make_teacher_rows,
    prepare_samples,
    select_model,
)


def gsm8k(
    *,
    base: str,
    data: str,
    test: str = "",
    task: Literal["gsm8k", "gsm8k-boxed"] = "gsm8k",
    max_train: Annotated[int, Ge(1)] | None = None,
    max_test: Annotated[int, Ge(1)] | None = None,
    method: Literal["lora", "full"] = "lora",
    num_completions: Annotated[int, Ge(1)] = 1,
    teacher: str = "",
    teacher_completions: Annotated[int, Ge(0)] = 0,
    ce_weight: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    seed: Seed = 42,
) -> Summary:
    """Finetune on GSM8K's solutions, with the loss on the answers only, and verify the answers before and after.

    base        the model to finetune: a folder or a hub id
    data, test  the official train.jsonl and test.jsonl. Without test, a tenth is held out
    task        answer format of training and evaluation: gsm8k, '#### 42' as in the official answers, or gsm8k-boxed
    max_train, max_test  size of a random subset of the problems. none: all
    method      lora, or full: all weights
    num_completions  completions per test problem, for pass@num_completions. 1: greedy decoding
    teacher     a larger model to distill from, with its answers (teacher_completions) or its distributions (ce_weight)
    teacher_completions  the teacher's completions per problem. The first correct one is trained on. 0: the solutions
    ce_weight   weight of the cross-entropy. The rest is on the KL divergence from the teacher's distributions
    seed        seed of split, order and sampling

    Settings of the jobs: --set sft.epochs=3, --set generate.max_new_tokens=512 and the like.
    """
    prepared = prepare_samples("prepare", data, test, task=task, max_train=max_train, max_test=max_test, seed=seed)
    sampling: dict[str, Any] = {"max_new_tokens": 400, "seed": seed}
    model = pretrained(base)
    training = step(
        "sft",
        sft.JOB,
        base=model,
        valid=prepared["valid"],
        **learn_from_teacher(
            teacher, model, prepared["train"], num_completions=teacher_completions, ce_weight=ce_weight, **sampling
        ),
        epochs=2,
        learning_rate=1e-4,
        method=method,
        **sampling,
    )
    sampling["num_completions"] = num_completions
    before = evaluate_model("start", model, None, prepared["test"], **sampling)
    after = evaluate_model("trained", *select_model(model, training), prepared["test"], **sampling)
    rows = [make_row("untrained", before, num_completions), make_row("trained", after, num_completions, training)]
    return Summary(rows + make_teacher_rows(teacher, prepared["test"], **sampling))
