"""All questions on a passage at once, or one after the other? EM, F1, tokens and latency, before and after training."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from ratchet.jobs.answers import sft
from ratchet.orchestrator.step import Output, Row, Seed, Summary, step
from ratchet.recipes.parts.answering import evaluate_model, prepare_samples, select_model, take_result
from ratchet.recipes.parts.models import find_model

COLUMNS = {
    "EM": "em",
    "F1": "f1",
    "Lenient": "lenient",
    "Q/Ctx": "questions_per_group",
    "PromptTok": "prompt_tokens",
    "GenTok": "generated_tokens",
    "PromptTok_API": "prompt_tokens_api",
    "Latency": "latency",
}
"""Title -> metric: quality, tokens and seconds per passage."""


def squad(
    *,
    base: str,
    data: str,
    test: str = "",
    strategies: Annotated[tuple[Literal["batch", "sequential"], ...], MinLen(1)] = ("batch", "sequential"),
    max_train: tuple[Annotated[int, Ge(1)], ...] | None = (1000,),
    max_test: Annotated[int, Ge(1)] = 100,
    method: Literal["lora", "full"] = "lora",
    seed: Seed = 42,
) -> Summary:
    """Finetune once per strategy of asking a passage's questions, and compare each with the untrained model.

    The published run: --settings published/squad

    base        the model to finetune: a folder or a hub id
    data, test  official SQuAD v1.1 JSON. Without test, a tenth of the passages is held out, in whole articles
    strategies  batch (each question in its own prompt, all in one batch), sequential (one conversation, each question
                after the answers to the previous ones)
    max_train   questions to train on, with all questions of their passages. 200,1000: one training each. none: all
    max_test    number of test passages, the same ones in all rows
    method      lora, or full: all weights
    seed        seed of subsets, split and order

    Settings of the jobs: --set sft.epochs=3, --set generate.max_new_tokens=512 and the like.
    """
    model = find_model(base)
    sampling: dict[str, Any] = {"max_new_tokens": 96, "seed": seed}
    rows, best = list[Row](), dict[str, Output]()
    for name, pairs in itertools.product(strategies, max_train or [None]):
        prefix, suffix = (f"{name}-{pairs}", f" on {pairs}") if max_train and len(max_train) > 1 else (name, "")
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
            **sampling,
        )
        best[prefix] = take_result(training)
        found = {"untrained": (model, None), f"trained{suffix}": select_model(model, training)}
        for label, chosen in found.items():
            title, steps = f"{name}, {label}", [training] if label != "untrained" else []
            if title not in (row.label for row in rows):  # the test passages are the same for all sizes
                options: dict[str, Any] = {"measure_latency": True, **sampling}
                answered = evaluate_model(f"{prefix}/{label.partition(' ')[0]}", *chosen, prepared["test"], **options)
                columns = {column: answered.metric(metric) for column, metric in COLUMNS.items()}
                taken = best[prefix] if steps else None
                rows.append(Row(title, columns, [*steps, *answered.parents, answered], taken))
    return Summary(rows, best=best)
