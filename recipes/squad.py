"""SQuAD: questions of a passage in separate prompts or in one conversation; EM, F1, tokens and latency of both."""

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from ratchet.jobs.answers import sft
from ratchet.orchestrator.step import Output, PositiveInt, Row, Seed, Source, Step, Summary, step
from ratchet.recipes.parts.answering import (
    evaluate_model,
    prepare_samples,
    select_model,
    take_result,
)
from ratchet.recipes.parts.models import choose_model

COLUMNS = {
    "EM": "em",
    "F1": "f1",
    "Lenient": "lenient",
    "Q/Ctx": "questions_per_group",
    "PromptTok": "prompt_tokens",
    "GenTok": "generated_tokens",
    "PromptTok_API": "prompt_tokens_api",
    "GenTok_API": "generated_tokens",
    "Latency": "latency",
}
"""Column title -> metric of `evaluate_answers`. Tokens and latency (seconds) are means per passage. An API counts the
prompt of every call, and generated tokens once."""

LONGEST_ANSWER = 96
"""Maximum tokens of an answer."""


def squad(
    *,
    base: str,
    data: str,
    test: str = "",
    strategies: Annotated[tuple[Literal["batch", "sequential"], ...], MinLen(1)] = (
        "batch",
        "sequential",
    ),
    max_train: tuple[PositiveInt, ...] | None = (1000,),
    max_test: PositiveInt = 100,
    method: Literal["lora", "full"] = "lora",
    seed: Seed = 42,
) -> Summary:
    """Finetune a model for each way of asking the questions of a passage, and compare it with the untrained model.

    The published run: --settings published/squad

    base        the model to finetune: a folder or a hub id
    data, test  official SQuAD v1.1 JSON. Without test, a tenth of the passages is held out, in whole articles
    strategies  batch (each question in its own prompt, all in one batch), sequential (one conversation, each question
                after the answers to the previous ones)
    max_train   maximum number of questions to train on, in whole passages. Several numbers, such as 200,1000: one
                training run for each. none: all
    max_test    maximum number of test passages; all rows use the same passages
    method      lora (train a LoRA adapter) or full (train all weights)
    seed        seed of the subsets, the split and the order of the training data

    Job settings are set as --set sft.epochs=3, --set generate.max_new_tokens=512 and so on."""
    model = choose_model(base)
    rows: list[Row] = []
    best = {}
    comparisons = []
    trained: dict[str, list[str]] = {}
    for name, pairs in itertools.product(strategies, max_train or [None]):
        prefix: str = name
        suffix = ""
        if max_train and len(max_train) > 1:
            prefix = f"{name}-{pairs}"
            suffix = f" on {pairs}"
        untrained = f"baseline_{name}"
        label = f"sft_{method}_{name}{suffix}"
        limits = {"max_train": pairs, "max_test": max_test, "seed": seed}
        prepared = prepare_samples(f"{prefix}/prepare", data, test, task=f"squad-{name}", **limits)
        training = step(
            f"{prefix}/sft",
            sft.JOB,
            base=model,
            train=prepared["train"],
            valid=prepared["valid"],
            epochs=1,
            batch_size=2,
            learning_rate=5e-5,
            method=method,
            max_new_tokens=LONGEST_ANSWER,
            seed=seed,
        )
        best[prefix] = take_result(training)
        labels = trained.setdefault(name, [])
        if not labels:
            answered = _evaluate(f"{prefix}/untrained", (model, None), prepared, seed)
            rows.append(_make_row(untrained, answered, baseline=True))
        answered = _evaluate(f"{prefix}/trained", select_model(model, training), prepared, seed)
        rows.append(_make_row(label, answered, [training], model=best[prefix]))
        comparisons += [(earlier, label) for earlier in (untrained, *labels)]
        labels.append(label)
    for same_size in zip(*trained.values(), strict=False):
        comparisons += itertools.combinations(same_size, 2)
    return Summary(rows, best=best, comparisons=comparisons)


def _evaluate(
    name: str, chosen: tuple[Source | Output, Output | None], prepared: Step, seed: int
) -> Step:
    """Answer the test questions with a model and its adapter, and verify the answers."""
    return evaluate_model(
        name,
        *chosen,
        prepared["test"],
        measure_latency=True,
        max_new_tokens=LONGEST_ANSWER,
        seed=seed,
    )


def _make_row(label: str, answered: Step, steps: Sequence[Step] = (), **about: Any) -> Row:
    columns = {column: answered.metric(metric) for column, metric in COLUMNS.items()}
    return Row(label, columns, [*steps, *answered.parents, answered], **about)
