"""Chat options of samples: arguments of chat templates, and additional stop strings.

`prepare_tasks` writes both beside the samples. `generate`, `sft`, `grpo`, `distill` and `teacher_logprobs` read them
from there, and have no such settings themselves, so all of them use the same options.
"""

import json
import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import InputError
from ratchet.jobs.model_checks import check_decoder_model, check_target_modules
from ratchet.jobs.training import config as training
from ratchet.orchestrator.job_interface import Parents

if TYPE_CHECKING:  # they import torch, numpy and pyarrow
    from ratchet.data.tasks.task import Sample
    from ratchet.models.decoder.conversation import Conversations
    from ratchet.models.decoder.decoder import Decoder

CHAT_FILE = "chat.json"
MOST_TURNS = 3
"""Turns of a conversation with which chat templates are tried: later ones are rendered as these."""
SPECIAL = re.compile(
    r"<[|｜][^|｜<>\s]{1,40}[|｜]>|</s>|<eos>|<end_of_turn>|<turn\|>|<EOT>|</think>"
)
"""Tokens that end answers, or thoughts before them, of some model."""
TALK = itemgetter("system", "questions", "targets")
"""Returns the arguments of `Conversations.tokenize_samples` from a row of SAMPLES."""
THOUGHTS = ("", ["Question?"], ["<think>\nThoughts.\n</think>\n\nAnswer."])


def describe_chat(config: Any, stop: Sequence[str], job: str = "prepare_tasks") -> dict[str, str]:
    """Return the metric `chat`, the content of `chat.json`, from which plans know the options; empty without options.

    stop: stop strings of the task and of the settings. job: name of the job that has the settings. Raises InputError
    for arguments that are not `name=value`."""
    arguments = config.chat_template_kwargs
    try:
        found = {}
        for name, _, text in (item.partition("=") for item in arguments):
            found[name] = json.loads(text)
    except ValueError:
        raise InputError(
            f"{job}.chat_template_kwargs: '{','.join(arguments)}' given; expected name=value, such as"
            " enable_thinking=false, with values in JSON"
        ) from None
    parts = {"template_arguments": found, "stop": list(stop) if config.stop else []}
    if found or config.stop:
        return {"chat": json.dumps(parts)}
    return {}


def read_chat(samples: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (arguments of chat templates, stop strings) of samples; both are empty if none were set."""
    file = samples / CHAT_FILE
    return _parse(file.read_text() if file.is_file() else "{}")


def load_decoder(config: Any, inputs: Any, device: str) -> "Decoder":
    """Load the model of a job that reads or writes answers, with the samples' arguments of the chat template.

    config: has `dtype` and `quantization`. inputs: has `model`, `adapter` and `samples`."""
    from ratchet.models.decoder import decoder

    arguments, _ = read_chat(inputs.samples)
    return decoder.load(
        inputs.model,
        inputs.adapter,
        template_arguments=arguments,
        dtype=config.dtype,
        device=device,
        quantization=config.quantization,
    )


def _parse(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    chat = json.loads(text)
    return chat.get("template_arguments", {}), tuple(chat.get("stop", ()))


def describe_samples(samples: "Iterable[Sample]") -> dict[str, int | str]:
    """Return the metrics from which plans know what chat templates have to render: `turns` if there are several,
    `system` if there are system messages, and `special_tokens` of any model in the targets."""
    turns = 1
    tokens = set()
    found: dict[str, int | str] = {}
    for sample in samples:
        turns = max(turns, len(sample.turns))
        if sample.system:
            found["system"] = 1
        for _, target in sample.turns:
            tokens.update(SPECIAL.findall(target))
    if turns > 1:
        found["turns"] = turns
    if tokens:
        found["special_tokens"] = " ".join(sorted(tokens))
    return found


def count_turns(samples: Path) -> int:
    """Return the number of turns of the longest conversation."""
    from ratchet.data.tables import read_shards

    questions = read_shards(samples, ["questions"])["questions"]
    return max(map(len, questions.to_pylist()), default=1)


def check_answers(folder: Path, conversations: "Conversations") -> None:
    """Raise InputError for a target that has in it a token that ends answers of a model: the rest would be cut off."""
    from ratchet.data.tables import read_shards

    for row in read_shards(folder, ["id", "targets"]).to_pylist():
        for target in row["targets"]:
            _check_target(f"{folder}: sample {row['id']}", target, conversations)
            if "</think>" in target:
                conversations.tokenize_samples([("", ["Question?"], [target])], exact=True)


def _check_target(where: str, target: str, conversations: "Conversations") -> None:
    token = conversations.find_end(target)
    if token is not None:
        raise InputError(
            f"{where}: {token!r} in an answer, which ends answers of the model; expected answers without it, since the"
            " rest would not be learned; remove it from the data"
        )


def check_verifier(samples: Path | None, verifier_file: Path | None) -> None:
    """Raise InputError at plan time for another verifier than that of the samples. samples: None: not made yet."""
    if samples is not None:
        from ratchet.data.tasks import read_task

        read_task(samples, verifier_file)


def check_decoder_training(
    job: str, config: Any, options: training.FinetuneConfig, inputs: Any, parents: Parents
) -> None:
    """Check what all jobs that train a decoder on samples have in common. Raises InputError for settings that exclude
    each other, and for an adapter as `current_best` with method=full. options: the config in the form that finetuning
    jobs share."""
    increasing = list(config.checkpoints) == sorted(set(config.checkpoints))
    training.require(job, config, [("checkpoints", increasing, "increasing training steps")])
    if config.method == "full" and (inputs.current_best is not None or "current_best" in parents):
        raise InputError(
            f"{job}.current_best: an adapter given, with method=full; expected none, since the result is a whole model;"
            " merge the adapter and give the merged model as base"
        )
    training.check_config(job, options, inputs, parents)
    if inputs.base is not None:
        check_decoder_model(inputs.base)
        check_target_modules(job, inputs.base, "causal", config)
    check_verifier(inputs.train, inputs.verifier_file)


def check_chat(inputs: Any, parents: Parents, *, trains: bool = False) -> None:
    """Raise ModelError at plan time for arguments that the chat template of the job's model does not use, and for a
    template that cannot render the samples; with `trains` also for one with which labels are not the answers, and
    InputError for answers that have a token that ends answers in them."""
    from ratchet.data.tables import read_shards

    model = getattr(inputs, "model", None) or getattr(inputs, "base", None)
    field = "samples" if hasattr(inputs, "samples") else "valid"
    samples = getattr(inputs, field)
    if model is None or (samples is None and field not in parents):
        return
    tokens = ""
    if samples is not None:
        arguments, _ = read_chat(samples)
        turns = count_turns(samples)
        system = any(read_shards(samples, ["system"])["system"].to_pylist())
    else:
        made = parents[field].metrics
        arguments, _ = _parse(str(made.get("chat", "{}")))
        turns = int(made.get("turns", 1))
        system = "system" in made
        tokens = str(made.get("special_tokens", ""))
    from ratchet.models.decoder import decoder

    conversations = decoder.load_conversations(model, arguments)
    turns = min(turns, MOST_TURNS)
    conversations.check_turns(turns, system)
    if trains:
        conversations.check_labels(turns, system)
        if "</think>" in tokens:
            conversations.tokenize_samples([THOUGHTS], exact=True)
        _check_target("the data", tokens, conversations)
        if inputs.train is not None:
            check_answers(inputs.train, conversations)
