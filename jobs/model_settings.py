"""The settings of jobs that replace fields of a model's encoding config or reranker config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ratchet.errors import InputError, ModelError
from ratchet.models.embedder.encoding_config import EncodingConfig, Example, read_encoding_config
from ratchet.models.model_files import find_config_folder
from ratchet.models.reranker.reranker_config import RerankerConfig, read_reranker_config
from ratchet.orchestrator.job_interface import Unit


@dataclass(frozen=True)
class EncodingSettings:
    """Settings that replace fields of the encoding config."""

    task: str | None = None
    """One sentence that says what to search for. Replaces `{task}` in the templates. None: as in the encoding
    config."""
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
    """The question behind a pair, which a decoder answers. None: as in the reranker config."""
    query_template: str | None = None
    """Template of queries, with `{text}`; `\\n` is a line break. None: as in the reranker config."""
    passage_template: str | None = None
    """Template of passages. None: as in the reranker config."""
    separator: str | None = None
    """Text between query, passage and prompt. None: as in the reranker config."""
    answer: str | None = None
    """One token, whose logit is the score. None: as in the reranker config."""
    against: str | None = None
    """One token, whose logit is subtracted. Empty: nothing is. None: as in the reranker config."""
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
    ModelError for a template without its placeholders.
    """
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
    asks = [name for name in ("prompt", "separator", "answer", "against") if name in changes]
    if asks and given.kind == "cross_encoder":
        raise ModelError(f"model {base}: {asks[0]} given, for a cross-encoder; expected a decoder; leave it out")
    if "max_length" in changes:
        changes.setdefault("query_max_length", None)
    return replace(given, **changes)


ICL_TEMPLATE = "<instruct>{task}\n<query>{text}\n<response>"
"""The template of bge-en-icl. An example is followed by its answer."""


def _find_changes(settings: Any, kind: type) -> dict[str, Any]:
    """Return the settings that are given, with line breaks in place of `\\n`."""
    given = {field.name: getattr(settings, field.name) for field in fields(kind)}
    return {
        name: value.replace("\\n", "\n") if isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }
