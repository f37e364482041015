"""The encoding config of an embedder: prompt templates, truncation and pooling. It is stored with the model."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from ratchet.errors import ModelError
from ratchet.models.model_files import (
    ENCODING_CONFIG_FILE,
    RERANKER_CONFIG_FILE,
    count_learned_positions,
    find_config_folder,
)
from ratchet.models.model_kind import (
    count_positions,
    describe_kind,
    read_dataclass,
    read_json,
    read_optional,
    write_json,
)
from ratchet.models.presets import find_preset

Role = Literal["query", "passage"]
Example = tuple[str, str]
"""(query, answer): a few-shot example in front of a query."""

MAX_LENGTH = 8192
"""Upper bound, in tokens, of a max_length that is read from a model folder: longer texts fill a machine's memory."""

POOLINGS: dict[str, Literal["cls", "mean", "last_token"]] = {
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    "lasttoken": "last_token",
}
"""Pooling modes of sentence-transformers, by current and older names -> `EncodingConfig.pooling`."""


@dataclass(frozen=True)
class EncodingConfig:
    """Prompt templates, truncation and pooling of an embedder."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    pooling: Literal["cls", "mean", "last_token"]
    """The state that becomes the vector: of the first token, the mean over all tokens, or of the last token."""
    normalize: bool = True
    """Scale vectors to length 1, so that the inner product is the cosine similarity."""
    max_length: int = 512
    """Tokens, including special tokens. Longer texts are truncated at the end."""
    query_template: str = "{text}"
    """Contains `{text}`, optionally `{task}`. bge-en-icl: `<instruct>{task}\\n<query>{text}\\n<response>`."""
    passage_template: str = "{text}"
    padding_side: Literal["left", "right"] = "right"
    add_eos: bool = False
    """Append the end-of-sequence token, at which many decoders are pooled."""
    task: str = ""
    """The instruction that replaces `{task}` in the templates."""
    query_max_length: int | None = None
    """Largest number of tokens of a query's own text. None: limited by max_length only."""
    passage_max_length: int | None = None
    """Largest number of tokens of a passage's own text. None: limited by max_length only."""
    examples: tuple[Example, ...] = ()
    """Few-shot examples (query, answer) in front of every query. Training draws other ones for each query."""
    example_template: str = ""
    """Contains `{text}` and `{answer}`, such as `<instruct>{task}\\n<query>{text}\\n<response>{answer}`."""
    example_query_max_length: int = 128
    """Largest number of tokens of an example's query."""
    example_answer_max_length: int = 128
    """Largest number of tokens of an example's answer."""
    projection: str = ""
    """Folder, beside this file, of a linear layer after the pooling (`embedder.projection`), or folders of several,
    separated by commas. Empty: none."""

    def __post_init__(self) -> None:
        own = [self.query_max_length, self.passage_max_length]
        if self.max_length < 4 or any(length is not None and length < 1 for length in own):
            raise ModelError(
                f"encoding_config: max_length {self.max_length}, query_max_length {self.query_max_length} and"
                f" passage_max_length {self.passage_max_length} given; expected at least 4, 1 and 1 tokens"
            )
        for name in ("query_template", "passage_template"):
            check_template(f"encoding_config.{name}", getattr(self, name), ("text",), ("task",))
        if self.examples or self.example_template:
            check_template(
                "encoding_config.example_template",
                self.example_template,
                ("text", "answer"),
                ("task",),
            )

    def split_template(self, role: Role) -> tuple[str, str]:
        """Return the text before and after `{text}` in the role's template."""
        template = self.query_template if role == "query" else self.passage_template
        before, _, after = template.partition("{text}")
        return before.replace("{task}", self.task), after.replace("{task}", self.task)

    def format_examples(self, examples: Sequence[Example]) -> str:
        """Return the few-shot examples as text in front of a query."""
        template = self.example_template.replace("{task}", self.task)
        before, _, rest = template.partition("{text}")
        between, _, after = rest.partition("{answer}")
        return "".join(f"{before}{text}{between}{answer}{after}\n\n" for text, answer in examples)

    def format_prompt(self, role: Role) -> str:
        """Return the text in front of `{text}` in the role's template. For queries, few-shot examples come first."""
        shown = self.format_examples(self.examples) if role == "query" else ""
        return shown + self.split_template(role)[0]

    def write(self, folder: Path) -> None:
        """Write `encoding_config.json`."""
        write_json(folder / ENCODING_CONFIG_FILE, asdict(self))


def check_template(
    where: str, template: str, needed: Sequence[str], known: Sequence[str] = ()
) -> None:
    """Raise ModelError, beginning with `where`, for a template that lacks a placeholder or has an unknown one."""
    found = re.findall(r"{(\w+)}", template)
    lacks = [name for name in needed if name not in found]
    unknown = [name for name in found if name not in (*needed, *known)]
    if lacks or unknown:
        if unknown:
            problem = f"unknown placeholder {{{unknown[0]}}}"
        else:
            problem = f"no {{{lacks[0]}}} in it"
        names = ", ".join(f"{{{name}}}" for name in (*needed, *known))
        raise ModelError(
            f"{where}: '{template}' given, with {problem}; expected {names}; correct the template"
        )


def read_encoding_config(base: Path, adapter: Path | None = None) -> EncodingConfig:
    """Read the encoding config of a model folder, or of its adapter if `find_config_folder` says so.

    Each field is taken from the first source that has it: `encoding_config.json` (all fields), the
    sentence-transformers layout, the preset of the model's family, the architecture (decoders pool the last token,
    encoders the mean). Raises ModelError for an invalid file, a reranker and unsupported layers.
    """
    folder = find_config_folder(base, adapter)
    own = folder / ENCODING_CONFIG_FILE
    if own.is_file():
        return read_dataclass(own, EncodingConfig)
    if (folder / RERANKER_CONFIG_FILE).is_file():
        raise ModelError(
            f"model {folder}: has a {RERANKER_CONFIG_FILE}; expected an embedder; give another model"
        )
    config = read_json(base / "config.json")
    decoder = describe_kind(config) in ("a decoder", "a model")
    preset = find_preset(base, "embedder")
    about: dict[str, Any] = {
        "padding_side": "left" if decoder else "right",
        **(preset.values if preset else {}),
    }
    limits = [about.get("max_length"), count_positions(config)]
    about["max_length"] = _max_length(folder, count_learned_positions(base), limits)
    if not (folder / "modules.json").is_file():
        # A decoder without an embedder's config is pooled at an appended end-of-sequence token.
        return EncodingConfig(
            **{"pooling": "last_token" if decoder else "mean", "add_eos": decoder, **about}
        )
    modules = []
    for one in read_json(folder / "modules.json"):
        modules.append((str(one["type"]).rsplit(".", 1)[-1], one["path"]))
    names = [name for name, _ in modules]
    paths = dict(modules)
    if not re.fullmatch(
        r"(Transformer,)?(Pooling,)?(Dense,)*(Normalize,)?", ",".join([*names, ""])
    ):
        raise ModelError(
            f"model {folder}: has the layers {', '.join(names)}; expected Transformer, Pooling, Dense and Normalize, in"
            " this order, and only Dense more than once; other layers are not supported"
        )
    own = paths.get("Transformer", "")
    if own not in ("", "."):
        raise ModelError(
            f"model {folder}: modules.json has its transformer in {own}, beside the model in the folder itself;"
            " expected one model; move one of them away"
        )
    pooling: dict[str, Any]
    if "Pooling" in paths:
        pooling = read_json(folder / paths["Pooling"] / "config.json")
    else:
        pooling = {}
    values = read_optional(folder / "config_sentence_transformers.json")
    query, passage = _prompts(folder, values, pooling)
    about |= {
        "pooling": _pooling(folder, pooling) if pooling else "mean",
        "normalize": "Normalize" in paths or _compares_by_cosine(folder, values),
        "projection": ",".join(path for name, path in modules if name == "Dense"),
    }
    if query:
        # A prompt of the preset's form is read as the preset's template with another task, which can be replaced.
        form = (
            re.escape(about.get("query_template", ""))
            .replace(r"\{task\}", "(.*)")
            .replace(r"\{text\}", "")
        )
        found = re.fullmatch(form, query, re.DOTALL)
        about |= (
            {"task": found[1]}
            if found and found.lastindex
            else {"query_template": query + "{text}"}
        )
    if passage:
        about["passage_template"] = passage + "{text}"
    return EncodingConfig(**about)


def _max_length(folder: Path, learned: int | None, others: list[int | None]) -> int:
    """The limit of sentence-transformers, else the smallest one of the tokenizer and `others`, those of preset and
    model; at most MAX_LENGTH, and the number of learned positions."""
    limits = [MAX_LENGTH, learned]
    given = read_optional(folder / "sentence_bert_config.json").get("max_seq_length")
    if given:
        limits.append(given)
    else:
        limits += others
        limits.append(read_optional(folder / "tokenizer_config.json").get("model_max_length"))
    return int(min(number for number in limits if number))


def _compares_by_cosine(folder: Path, values: dict[str, Any]) -> bool:
    """Whether sentence-transformers compares vectors by cosine similarity (its default), else by inner product."""
    name = values.get("similarity_fn_name") or "cosine"
    if name not in ("cosine", "dot"):
        raise ModelError(
            f"model {folder}: compares vectors by {name}; expected cosine or dot; use another model"
        )
    return bool(name == "cosine")


def _prompts(folder: Path, values: dict[str, Any], pooling: dict[str, Any]) -> tuple[str, str]:
    """The prompts of sentence-transformers for queries and passages."""
    prompts = values.get("prompts") or {}
    query = prompts.get("query") or ""
    passage = prompts.get("document") or prompts.get("passage") or ""
    if (query or passage) and pooling.get("include_prompt") is False:
        raise ModelError(
            f"model {folder}: pools without its prompts; expected include_prompt: true; use another model"
        )
    return query, passage


def _pooling(folder: Path, config: dict[str, Any]) -> Literal["cls", "mean", "last_token"]:
    given = config.get("pooling_mode") or [
        name.removeprefix("pooling_mode_")
        for name, on in config.items()
        if name.startswith("pooling_mode_") and on
    ]
    modes = [given] if isinstance(given, str) else list(given)
    if len(modes) == 1 and modes[0] in POOLINGS:
        return POOLINGS[modes[0]]
    raise ModelError(
        f"model {folder}: pools by {', '.join(modes) or 'nothing'}; expected cls, mean or lasttoken alone; use another"
        " model"
    )
