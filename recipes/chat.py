"""Your own chats: finetune on the assistant's messages, and compare verified answers or the loss before and after."""

from typing import Any, Literal

from ratchet.jobs.answers import sft
from ratchet.orchestrator.step import PositiveInt, Row, Seed, Source, Summary, step
from ratchet.recipes.parts.answering import finetune_and_compare, prepare_samples, take_result
from ratchet.recipes.parts.models import choose_model


def chat(
    *,
    base: str,
    data: str,
    test: str = "",
    verifier: str = "none",
    max_train: PositiveInt | None = None,
    max_test: PositiveInt | None = None,
    method: Literal["lora", "full"] = "lora",
    num_completions: PositiveInt = 1,
    seed: Seed = 42,
) -> Summary:
    """Finetune on chats, with the loss on the assistant's messages only, and compare the model before and after.

    base        the model to finetune: a folder or a hub id
    data, test  JSONL with messages (role and content), and optionally id, group and answer. The verifier compares with
                answer; where it is missing, with the last assistant message. Without test, a tenth of data is held out
    verifier    exact (normalized equality), math (the package math-verify), or FILE:FUNCTION such as ./mine.py:verify:
                a function (gold, answers) -> bool, number in [0, 1] or label. none: answers are not verified; the loss
                on the test rows selects the checkpoint, and the table shows this loss before and after training
    max_train   maximum number of turns to train on, from a random subset of the chats. none: all
    max_test    maximum number of test chats, drawn at random. none: all
    method      lora (train a LoRA adapter) or full (train all weights)
    num_completions  completions per test chat, for pass@num_completions. 1: greedy decoding
    seed        seed of the split, the order of the training data and the sampling

    Job settings are set as --set sft.epochs=3, --set generate.max_new_tokens=512 and so on."""
    file, colon, name = verifier.rpartition(":")
    source = Source.find(file, "verifier") if colon else None
    values: dict[str, Any] = {
        "task": "chat",
        "verifier": name,
        "verifier_file": source,
        "seed": seed,
    }
    prepared = prepare_samples(
        "prepare", data, test, max_train=max_train, max_test=max_test, **values
    )
    settings: dict[str, Any] = {"epochs": 2, "method": method, "seed": seed}
    if verifier != "none":
        settings |= {"num_completions": num_completions, "max_new_tokens": 400}
        return finetune_and_compare(choose_model(base), prepared, **settings)
    settings |= {
        "train": prepared["train"],
        "valid": prepared["test"],
        "valid_samples": 0,
        "metric": "eval_loss",
    }
    training = step("sft", sft.JOB, base=choose_model(base), **settings)
    made = take_result(training)
    rows = [
        Row("untrained", {"held-out loss": training.metric("valid/eval_loss_start")}, baseline=True)
    ]
    rows.append(
        Row("trained", {"held-out loss": training.metric("valid/eval_loss")}, [training], made)
    )
    return Summary(rows, best={"model": made})
