"""The settings of jobs that replace fields of a model's encoding config or reranker config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ratchet.data.formats.examples import read_examples
from ratchet.errors import InputError, ModelError
from ratchet.models.embedder.encoding_config import EncodingConfig, Example, Role, read_encoding_config
from ratchet.models.model_files import ENCODING_CONFIG_FILE, RERANKER_CONFIG_FILE, find_config_folder
from ratchet.models.presets import ICL_TEMPLATE, find_preset
from ratchet.models.reranker.reranker_config import RerankerConfig, read_reranker_config
from ratchet.orchestrator.job_interface import Parents, Result, Unit


@dataclass(frozen=True)
class EncodingSettings:
    """Settings that replace fields of the encoding config."""

    task: str | None = None
    """One sentence that says what to search for. Replaces `{task}` in the templates. None: the query's own, where the
    data has tasks, else as in the encoding config."""
    query_template: str | None = None
    """Template of queries, with `{text}` and optionally `{task}`; `\\n` is a line break. None: as in the encoding
    config; with examples, that of bge-en-icl."""
    passage_template: str | None = None
    """Template of passages. None: as in the encoding config."""
    pooling: Literal["cls", "mean", "last_token"] | None = None
    """None: as in the encoding config."""
    normalize: bool | None = None
    """Scale vectors to length 1. None: as in the encoding config."""
    add_eos: bool | None = None
    """Append the end-of-sequence token. None: as in the encoding config."""
    max_length: Annotated[int, Ge(4), Unit("tokens")] | None = None
    """Longer texts are truncated. None: the limit of the encoding config."""
    query_max_length: Annotated[int, Ge(1), Unit("tokens")] | None = None
    """Longer queries are truncated, before the template is applied. None: the limit of the encoding config."""
    example_template: str | None = None
    """Template of few-shot examples, with `{text}` and `{answer}`. None: the query template, then the answer."""
    example_query_max_length: Annotated[int, Ge(1), Unit("tokens")] | None = None
    """Longer queries of examples are truncated. None: the limit of the encoding config, 128 by default."""
    example_answer_max_length: Annotated[int, Ge(1), Unit("tokens")] | None = None
    """Longer answers of examples are truncated. None: the limit of the encoding config, 128 by default."""


@dataclass(frozen=True)
class RerankerSettings:
    """Settings that replace fields of the reranker config."""

    prompt: str | None = None
    """The question behind a pair, which a decoder answers, or the instruction. None: the query's own, where the data
    has prompts, else as in the reranker config."""
    query_template: str | None = None
    """Template of queries, with `{text}`, and `{prompt}` if the prompt stands there; `\\n` is a line break. None: as in
    the reranker config."""
    passage_template: str | None = None
    """Template of passages. None: as in the reranker config."""
    separator: str | None = None
    """Text between query, passage and prompt. None: as in the reranker config."""
    answer: str | None = None
    """One token, whose logit is the score. None: as in the reranker config."""
    against: str | None = None
    """One token, whose logit is subtracted. Empty: nothing is. None: as in the reranker config."""
    prefix: str | None = None
    """Text in front of the query. None: as in the reranker config."""
    suffix: str | None = None
    """Text between the prompt and the answer. None: as in the reranker config."""
    max_length: Annotated[int, Ge(8), Unit("tokens")] | None = None
    """Longer pairs are truncated. None: the limit of the reranker config."""
    query_max_length: Annotated[int, Ge(1), Unit("tokens")] | None = None
    """Longer queries in a pair are truncated. None: the limit of the reranker config."""


def resolve_encoding_config(
    where: str,
    settings: EncodingSettings,
    base: Path,
    adapter: Path | None = None,
    examples: Sequence[Example] | None = None,
    *,
    uses_task: bool = True,
) -> EncodingConfig:
    """Return the encoding config of an adapter or its base, with the settings that are given.

    examples: replace those of the encoding config, which then needs templates for them. None: they stay. uses_task:
    whether a task that no template has is refused. Raises InputError, beginning with `where`, for such a task, and
    ModelError for a template without its placeholders."""
    given = read_encoding_config(find_config_folder(base, adapter))
    changes = _find_changes(settings, EncodingSettings)
    if examples is not None:
        known = "" if "query_template" in changes else given.example_template
        query = changes.setdefault("query_template", given.query_template if known else ICL_TEMPLATE)
        changes.setdefault("example_template", known or query + "{answer}")
        changes["examples"] = tuple(examples)
    found = replace(given, **changes)
    templates = found.query_template, found.passage_template, found.example_template
    if uses_task and changes.get("task") and not any("{task}" in template for template in templates):
        raise InputError(
            f"{where}.task: {settings.task!r} given, but no template has {{task}}; expected query_template with it; set"
            " query_template, such as 'Instruct: {task}\\nQuery: {text}', or leave task empty"
        )
    return found


def resolve_reranker_config(settings: RerankerSettings, base: Path, adapter: Path | None = None) -> RerankerConfig:
    """Return the reranker config of an adapter or its base, with the settings that are given."""
    given = read_reranker_config(find_config_folder(base, adapter))
    changes = _find_changes(settings, RerankerSettings)
    asks = [name for name in ("prompt", "separator", "answer", "against", "prefix", "suffix") if name in changes]
    if asks and given.kind == "cross_encoder":
        raise ModelError(f"model {base}: {asks[0]} given, for a cross-encoder; expected a decoder; leave it out")
    if "max_length" in changes:
        changes.setdefault("query_max_length", None)
    return replace(given, **changes)


def list_instructions(settings: EncodingSettings | RerankerSettings, queries: Any) -> list[str]:
    """Return each row's own task (embedders) or prompt (rerankers), empty for none or if a setting replaces it."""
    name = "task" if isinstance(settings, EncodingSettings) else "prompt"
    if getattr(settings, name) is not None or name not in queries.column_names:
        return [""] * len(queries)
    return [text or "" for text in queries[name].to_pylist()]


def predict_prompts(config: Any, inputs: Any, parents: Parents, role: Role = "query") -> Result:
    """Say in the plan which preset a job's model has, and whether it uses the instructions of the data (which a parent
    counts as `tasks` and `prompts`)."""
    base: Path | None = getattr(inputs, "model", None) or getattr(inputs, "base", None)
    known = parents["lists"].metrics if "lists" in parents else {}
    if base is None:
        return Result(known)
    starts = getattr(config, "start_from", "") == "current_best"
    adapter: Path | None = inputs.current_best if starts else getattr(inputs, "adapter", None)
    found: EncodingConfig | RerankerConfig
    if isinstance(config, EncodingSettings):
        examples = read_examples(getattr(inputs, "examples", None)) or None
        found = resolve_encoding_config("", config, base, adapter, examples, uses_task=False)
        name, how, file = "task", str(found.pooling), ENCODING_CONFIG_FILE
        used = "used" if "{task}" in found.query_template else "not used: the query template has no {task}"
    else:
        found = resolve_reranker_config(config, base, adapter)
        name, how, file = "prompt", str(found.kind), RERANKER_CONFIG_FILE
        used = "used" if found.kind == "yes_no" else "not used by a cross-encoder"
    role, lines = getattr(config, "role", role), []
    preset = find_preset(base, "embedder" if name == "task" else "reranker")
    if preset is not None and not (find_config_folder(base, adapter) / file).is_file():
        template = found.query_template if role == "query" else found.passage_template
        shown = f"{how}, max {found.max_length}, {json.dumps(template, ensure_ascii=False)}"
        lines.append(f"{'encoding' if name == 'task' else 'reranking'}: preset {preset.family} ({shown})")
    count = next((one.metrics[f"{name}s"] for one in parents.values() if f"{name}s" in one.metrics), 0)
    if count and role == "query":
        used = used if getattr(config, name) is None else f"not used: {name} is set"
        lines.append(f"{count} distinct {name}{'s' * (count != 1)} in the data, {used}")
    return Result(known, note="; ".join(lines))


def _find_changes(settings: Any, kind: type) -> dict[str, Any]:
    """Return the settings that are given, with line breaks in place of `\\n`."""
    given = {field.name: getattr(settings, field.name) for field in fields(kind)}
    return {k: v.replace("\\n", "\n") if isinstance(v, str) else v for k, v in given.items() if v is not None}
