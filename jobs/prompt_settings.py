"""Settings of jobs that override fields of a model's encoding config or reranker config."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ratchet.data.formats.examples import read_examples
from ratchet.errors import InputError, ModelError
from ratchet.models.embedder.encoding_config import (
    EncodingConfig,
    Example,
    Role,
    read_encoding_config,
)
from ratchet.models.model_files import (
    ENCODING_CONFIG_FILE,
    RERANKER_CONFIG_FILE,
    find_config_folder,
)
from ratchet.models.presets import ICL_TEMPLATE, find_preset
from ratchet.models.reranker.reranker_config import RerankerConfig, read_reranker_config
from ratchet.orchestrator.job_interface import Parents, Result, Tokens, Unit


@dataclass(frozen=True)
class EncodingSettings:
    """Settings that override fields of the encoding config."""

    task: str | None = None
    """Instruction for the embedder, one sentence that says what to search for. It replaces `{task}` in the templates.
    None: each query's task if the data has tasks, else the task of the encoding config."""
    query_template: str | None = None
    """Prompt template of queries, with `{text}` and optionally `{task}`; `\\n` is a line break. None: the template of
    the encoding config; with few-shot examples and a model without an example template, that of bge-en-icl."""
    passage_template: str | None = None
    """Prompt template of passages, with `{text}`. None: as in the encoding config."""
    pooling: Literal["cls", "mean", "last_token"] | None = None
    """How token vectors become a text's vector: the first, the mean, or the last. None: as in the encoding config."""
    normalize: bool | None = None
    """Scale vectors to length 1. None: as in the encoding config."""
    add_eos: bool | None = None
    """Append the end-of-sequence token. None: as in the encoding config."""
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Maximum length of a text with its template. Longer texts are truncated. None: as in the encoding config."""
    query_max_length: Tokens | None = None
    """Maximum length of a query without its template. Longer ones are truncated. None: as in the encoding config."""
    passage_max_length: Tokens | None = None
    """Maximum length of a passage without its template. Longer ones are truncated. None: as in the encoding config."""
    example_template: str | None = None
    """Template of few-shot examples, with `{text}` and `{answer}`. None: as in the encoding config, or if it has none,
    the query template followed by the answer."""
    example_query_max_length: Tokens | None = None
    """Maximum length of the query of an example. None: as in the encoding config, 128 by default."""
    example_answer_max_length: Tokens | None = None
    """Maximum length of the answer of an example. None: as in the encoding config, 128 by default."""


@dataclass(frozen=True)
class RerankerSettings:
    """Settings that override fields of the reranker config."""

    prompt: str | None = None
    """The question about a pair that a decoder answers with Yes or No, or the instruction. None: each query's prompt
    if the data has prompts, else the prompt of the reranker config."""
    query_template: str | None = None
    """Template of queries, with `{text}`, and with `{prompt}` if the prompt is part of the query; `\\n` is a line
    break. None: as in the reranker config."""
    passage_template: str | None = None
    """Template of passages. None: as in the reranker config."""
    separator: str | None = None
    """Text between query, passage and prompt. None: as in the reranker config."""
    answer: str | None = None
    """A single token, such as Yes, whose logit is the score. None: as in the reranker config."""
    against: str | None = None
    """A single token, such as No, whose logit is subtracted. Empty: no subtraction. None: as in the reranker config."""
    prefix: str | None = None
    """Text before the query. None: as in the reranker config."""
    suffix: str | None = None
    """Text between the prompt and the answer. None: as in the reranker config."""
    max_length: Annotated[int, Ge(8), Unit("tokens")] | None = None
    """Maximum length of a pair with its prompt. Longer passages are truncated. None: as in the reranker config."""
    query_max_length: Tokens | None = None
    """Maximum length of the query in a pair. None: as in the reranker config; if `max_length` is set, half of that."""


def resolve_encoding_config(
    where: str,
    settings: EncodingSettings,
    base: Path,
    adapter: Path | None = None,
    examples: Sequence[Example] | None = None,
    *,
    uses_task: bool = True,
) -> EncodingConfig:
    """Return the encoding config of an adapter, or of its base, with the given settings applied.

    examples: replace the examples of the encoding config, and set templates for them if it has none. None: keep its
    examples. uses_task: whether to refuse `settings.task` if no template contains `{task}`, with an InputError that
    begins with `where`. Raises ModelError for a template without its placeholders."""
    given = read_encoding_config(base, adapter)
    changes = _find_changes(settings, EncodingSettings)
    if examples is not None:
        known = "" if "query_template" in changes else given.example_template
        query = changes.setdefault(
            "query_template", given.query_template if known else ICL_TEMPLATE
        )
        changes.setdefault("example_template", known or query + "{answer}")
        changes["examples"] = tuple(examples)
    found = replace(given, **changes)
    templates = found.query_template + found.passage_template + found.example_template
    if uses_task and changes.get("task") and "{task}" not in templates:
        raise InputError(
            f"{where}.task: {settings.task!r} given, but no template has {{task}}; expected query_template with it; set"
            " query_template, such as 'Instruct: {task}\\nQuery: {text}', or leave task empty"
        )
    return found


def resolve_reranker_config(
    settings: RerankerSettings, base: Path, adapter: Path | None = None
) -> RerankerConfig:
    """Return the reranker config of an adapter, or of its base, with the given settings applied."""
    given = read_reranker_config(find_config_folder(base, adapter))
    changes = _find_changes(settings, RerankerSettings)
    for name in ("prompt", "separator", "answer", "against", "prefix", "suffix"):
        if name in changes and given.kind == "cross_encoder":
            raise ModelError(
                f"model {base}: {name} given, for a cross-encoder; expected a decoder; leave it out"
            )
    if "max_length" in changes:
        changes.setdefault("query_max_length", None)
    return replace(given, **changes)


def list_instructions(settings: EncodingSettings | RerankerSettings, queries: Any) -> list[str]:
    """Return the task (embedders) or prompt (rerankers) of each query; empty for none, or if a setting overrides it."""
    name = "task" if isinstance(settings, EncodingSettings) else "prompt"
    if getattr(settings, name) is not None or name not in queries.column_names:
        return [""] * len(queries)
    return [text or "" for text in queries[name].to_pylist()]


def list_own_examples(queries: Any) -> list[list[Example]] | None:
    """Return the few-shot examples of each query that `prepare` drew. None: the queries have none of their own."""
    if "examples" not in queries.column_names:
        return None
    found = []
    for own in queries["examples"].to_pylist():
        found.append([(query, answer) for query, answer in own or ()])  # synthetic queries: none
    return found


def list_examples(config: Any, inputs: Any) -> Sequence[Example] | None:
    """Return the few-shot examples to save for inference. None: queries have no examples.

    config: has `num_examples`. inputs: `examples`."""
    examples = read_examples(inputs.examples)
    if config.num_examples or examples:
        return examples
    return None


def describe_prompts(config: Any, inputs: Any, parents: Parents, role: Role = "query") -> Result:
    """Describe for the plan, in the result's note, the preset of a job's model, and whether the model uses the data's
    instructions (counted by the metrics `tasks` and `prompts` of a parent step)."""
    known = parents.get("lists", Result()).metrics
    base = getattr(inputs, "model", None) or getattr(inputs, "base", None)
    if base is None:
        return Result(known)
    adapter = getattr(inputs, "adapter", None)
    if getattr(config, "start_from", "") == "current_best":
        adapter = inputs.current_best
    role = getattr(config, "role", role)
    found: EncodingConfig | RerankerConfig
    if isinstance(config, EncodingSettings):
        examples: Sequence[Example] | None
        examples = read_examples(getattr(inputs, "examples", None)) or None
        if examples is None and ("examples" in parents or getattr(config, "num_examples", False)):
            examples = ()  # a step has yet to draw them
        found = resolve_encoding_config("", config, base, adapter, examples, uses_task=False)
        name = "task"
        file = ENCODING_CONFIG_FILE
        how = str(found.pooling)
        is_used = "{task}" in found.query_template
    else:
        found = resolve_reranker_config(config, base, adapter)
        name = "prompt"
        file = RERANKER_CONFIG_FILE
        how = str(found.kind)
        is_used = found.kind == "yes_no"
    notes = []
    preset = find_preset(base, "embedder" if name == "task" else "reranker")
    if preset is not None and not (find_config_folder(base, adapter) / file).is_file():
        template = found.query_template if role == "query" else found.passage_template
        text = json.dumps(template, ensure_ascii=False)
        notes.append(f"preset {preset.family} ({how}, max {found.max_length}, {text})")
    for parent in parents.values():
        count = parent.metrics.get(f"{name}s")
        if count and role == "query":
            used = "used"
            if getattr(config, name) is not None:
                used = f"not used: {name} is set"
            elif not is_used:
                used = "not used: the prompt of the model has no place for them"
            notes.append(f"distinct {name}s in the data: {count}, {used}")
            break
    return Result(known, note="; ".join(notes))


def _find_changes(settings: Any, kind: type) -> dict[str, Any]:
    """Return the settings that are not None, with `\\n` replaced by a line break."""
    found = {}
    for field in fields(kind):
        value = getattr(settings, field.name)
        if isinstance(value, str):
            value = value.replace("\\n", "\n")
        if value is not None:
            found[field.name] = value
    return found
