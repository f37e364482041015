"""GSM8K word problems: finetune on the official solutions, and evaluate on the test set before and after."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from ratchet.orchestrator.step import Fraction, NonNegativeInt, Output, PositiveInt, Seed, Summary
from ratchet.recipes.parts.answering import finetune_and_compare, prepare_samples
from ratchet.recipes.parts.models import choose_model


def gsm8k(
    *,
    base: str,
    data: str,
    test: str = "",
    task: Literal["gsm8k", "gsm8k-annotated", "gsm8k-boxed"] = "gsm8k",
    evaluate_as: Annotated[tuple[Literal["same", "gsm8k", "gsm8k-boxed"], ...], MinLen(1)] = (
        "same",
    ),
    max_train: PositiveInt | None = None,
    max_test: PositiveInt | None = None,
    method: Literal["lora", "full"] = "lora",
    num_completions: PositiveInt = 1,
    teacher: str = "",
    teacher_completions: NonNegativeInt = 0,
    ce_weight: Fraction = 0.5,
    distill_steps: tuple[PositiveInt, ...] = (),
    lmbda: Fraction = 0.5,
    grpo_steps: tuple[PositiveInt, ...] = (),
    seed: Seed = 42,
) -> Summary:
    """Finetune on GSM8K's solutions, with the loss on the answers only, and verify answers before and after training.

    The published run: --settings published/gsm8k

    base        the model to finetune: a folder or a hub id
    data, test  the official train.jsonl and test.jsonl. Without test, a tenth of data is held out
    task        answer format to train on: gsm8k ('#### 42', as in the official answers), gsm8k-annotated (the same with
                their calculator annotations, '<<48/2=24>>') or gsm8k-boxed ('\\boxed{42}')
    evaluate_as  answer formats of the evaluation, each with its prompt and verifier: same (that of task) or others
    max_train, max_test  maximum number of problems, drawn at random. none: all
    method      lora (train a LoRA adapter) or full (train all weights)
    num_completions  completions per test problem, for pass@num_completions. 1: greedy decoding
    teacher     a larger model to distill: from its answers (teacher_completions) or its distributions (ce_weight)
    teacher_completions  the teacher's completions per problem. sft trains on the first correct one. 0: on the solutions
    ce_weight   with a teacher: the loss is ce_weight * CE + (1 - ce_weight) * KL from the teacher's distributions
    distill_steps  training steps of on-policy distillation (distill) after which the model is saved and evaluated. It
                takes the place of sft, and ends at the last of these steps. Empty: sft
    lmbda       fraction of these steps whose answers are the student's own, not the targets (lambda in the paper)
    grpo_steps  training steps of GRPO after which its model is saved and evaluated. GRPO starts from the trained model
                and ends at the last of these steps. Empty: no GRPO
    seed        seed of the split, the order of the training data and the sampling

    Job settings are set as --set sft.epochs=3, --set generate.max_new_tokens=512 and so on."""
    limits: dict[str, Any] = {"max_train": max_train, "max_test": max_test, "seed": seed}
    prepared = prepare_samples("prepare", data, test, task=task, **limits)
    tests: dict[str, Output] = {}
    for name in evaluate_as:
        if name in ("same", task.removesuffix("-annotated")):
            tests[""] = prepared["test"]
        else:
            asked = prepare_samples(
                f"{name}/prepare", data, test, task=name, trained=prepared["train"], **limits
            )
            tests[name] = asked["test"]
    notes = []
    if "" not in tests:
        notes.append(
            f"evaluate_as: {','.join(tests)}, and the model is trained as {task}: answers in the format that it learns"
            " count as wrong, so training can lower the accuracy; add same to evaluate_as"
        )
    summary = finetune_and_compare(
        choose_model(base),
        prepared,
        tests=tests,
        num_completions=num_completions,
        teacher=teacher,
        teacher_completions=teacher_completions,
        ce_weight=ce_weight,
        distill_steps=distill_steps,
        lmbda=lmbda,
        grpo_steps=grpo_steps,
        epochs=2,
        learning_rate=1e-4,
        method=method,
        max_new_tokens=400,
        seed=seed,
    )
    return replace(summary, notes=notes)
