"""Chat options of samples: arguments of chat templates, and additional stop strings.

`prepare_tasks` writes both beside the samples. `generate`, `sft`, `grpo` and `teacher_logprobs` read them from there,
and have no such settings themselves, so all of them use the same options.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Parents, Result

CHAT_FILE = "chat.json"


def describe_chat(config: Any, stop: Sequence[str], job: str = "prepare_tasks") -> dict[str, str]:
    """Return the metric `chat`, the content of `chat.json`, from which plans know the options; empty without options.

    stop: stop strings of the task and of the settings. job: name of the job that has the settings. Raises InputError
    for arguments that are not `name=value`."""
    arguments = config.chat_template_kwargs
    try:
        found = {name: json.loads(text) for name, _, text in (item.partition("=") for item in arguments)}
    except ValueError:
        raise InputError(
            f"{job}.chat_template_kwargs: '{','.join(arguments)}' given; expected name=value, such as"
            " enable_thinking=false, with values in JSON"
        ) from None
    parts = {"template_arguments": found, "stop": list(stop) if config.stop else []}
    return {"chat": json.dumps(parts)} if found or config.stop else {}


def read_chat(samples: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (arguments of chat templates, stop strings) of samples; both are empty if none were set."""
    file = samples / CHAT_FILE
    return _parse(file.read_text() if file.is_file() else "{}")


def _parse(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    chat = json.loads(text)
    return chat.get("template_arguments", {}), tuple(chat.get("stop", ()))


def check_chat(config: Any, inputs: Any, parents: Parents, *, trains: bool = False) -> Result:
    """Raise ModelError at plan time for arguments that the chat template of the job's model does not use, and with
    `trains` for a template with which labels are not the answers."""
    model = getattr(inputs, "model", None) or getattr(inputs, "base", None)
    field = "samples" if hasattr(inputs, "samples") else "valid"
    samples, made = getattr(inputs, field), parents.get(field, Result())
    arguments, _ = _parse(str(made.metrics.get("chat", "{}"))) if samples is None else read_chat(samples)
    known = samples is not None or field in parents
    if model is not None and (arguments or (trains and known)):
        from ratchet.models.decoder import decoder

        conversations = decoder.load_conversations(model, arguments)
        if trains:
            conversations.check_labels()
    return Result()
