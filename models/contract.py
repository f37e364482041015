"""How a model wants its texts and how its output becomes one vector: kept with the model, used by every job alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from models.errors import ModelError

FILE = "ratchet_contract.json"
Role = Literal["query", "passage"]
Example = tuple[str, str]
"""(a query, its answer), shown before another query of the same task."""

LONGEST = 8192
"""Tokens; longer limits are not taken from model folders: a text of that length fills a machine's memory."""

POOLINGS: dict[str, Literal["cls", "mean", "last_token"]] = {
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    "lasttoken": "last_token",
}
"""sentence-transformers' names, today's and yesterday's."""


@dataclass(frozen=True)
class Contract:
    """The prompt contract of an embedder."""

    pooling: Literal["cls", "mean", "last_token"]
    normalize: bool = True
    """Scale to length 1, so that the inner product is the cosine."""
    max_length: int = 512
    """Tokens, special ones included; longer texts are cut at the end."""
    query_template: str = "{text}"
    """`{task}` in it stands for the task; `<instruct>{task}\\n<query>{text}\\n<response>` is that of bge-en-icl."""
    passage_template: str = "{text}"
    padding_side: Literal["left", "right"] = "right"
    add_eos: bool = False
    """Whether the end-of-sequence token is added: decoders are often trained to be pooled there."""
    task: str = ""
    """What is looked for, in a sentence."""
    query_max_length: int | None = None
    """Tokens of a query's own text; None: what max_length leaves."""
    examples: tuple[Example, ...] = ()
    """Shown before every query (in training: before each query others, drawn anew)."""
    example_template: str = ""
    """With `{text}` and `{answer}`, such as `<instruct>{task}\\n<query>{text}\\n<response>{answer}`."""
    example_max_length: int = 128
    """Tokens of an example's query, and of its answer."""
    projection: str = ""
    """The folder, beside this file, of a linear layer behind the pooling (`models.projection`); empty: none."""

    def __post_init__(self) -> None:
        if self.pooling not in ("cls", "mean", "last_token"):
            raise ModelError(f"contract.pooling: '{self.pooling}' given; expected cls, mean or last_token")
        if self.padding_side not in ("left", "right"):
            raise ModelError(f"contract.padding_side: '{self.padding_side}' given; expected left or right")
        if self.max_length < 4:
            raise ModelError(f"contract.max_length: {self.max_length} given; expected 4 or more tokens")
        for name in ("query_template", "passage_template"):
            if "{text}" not in getattr(self, name):
                raise ModelError(f"contract.{name}: '{getattr(self, name)}' given; expected a template with {{text}}")
        if self.examples and not ("{text}" in self.example_template and "{answer}" in self.example_template):
            raise ModelError(
                f"contract.example_template: '{self.example_template}' given; expected {{text}} and {{answer}} in it,"
                " since there are examples"
            )
        if self.example_max_length < 1 or (self.query_max_length is not None and self.query_max_length < 1):
            raise ModelError(
                f"contract.example_max_length, query_max_length: {self.example_max_length}, {self.query_max_length}"
                " given; expected 1 or more tokens"
            )

    def template(self, role: Role) -> tuple[str, str]:
        """What stands before and after a text."""
        template = self.query_template if role == "query" else self.passage_template
        before, _, after = template.partition("{text}")
        return before.replace("{task}", self.task), after.replace("{task}", self.task)

    def shown(self, examples: Sequence[Example]) -> str:
        """Examples as they stand before a query."""
        template = self.example_template.replace("{task}", self.task)
        before, _, rest = template.partition("{text}")
        between, _, after = rest.partition("{answer}")
        return "".join(f"{before}{text}{between}{answer}{after}\n\n" for text, answer in examples)

    def shortened(self, max_length: int | None) -> Contract:
        """With another length limit, if one is given."""
        return self if max_length is None else replace(self, max_length=max_length)

    def write(self, folder: Path) -> None:
        """Writes `ratchet_contract.json`."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")


def home(base: Path, adapter: Path | None) -> Path:
    """The folder whose contract holds: the adapter's, where it brings one, else the base's."""
    return adapter if adapter is not None and (adapter / FILE).is_file() else base


def read(folder: Path) -> Contract:
    """A model folder's contract: its own file, else from the sentence-transformers layout, else by architecture
    (decoders pool the last token, encoders the mean). Raises ModelError for a file that is no contract, and for
    layouts that compute what an Encoder does not."""
    own = folder / FILE
    if own.is_file():
        values = _json(own)
        known = {field.name for field in fields(Contract)}
        if not isinstance(values, dict) or set(values) - known or "pooling" not in values:
            raise ModelError(f"{own}: fields {', '.join(map(str, values))}; expected {', '.join(sorted(known))}")
        examples = tuple((str(text), str(answer)) for text, answer in values.get("examples", ()))
        return Contract(**{**values, "examples": examples})
    config = _json(folder / "config.json")
    decoder = _is_decoder(config)
    length = _max_length(folder, config)
    if not (folder / "modules.json").is_file():
        # A bare decoder was never taught where a text ends: the end token gives it one place that stands for all.
        return Contract(
            "last_token" if decoder else "mean",
            max_length=length,
            padding_side="left" if decoder else "right",
            add_eos=decoder,
        )
    paths = {str(module["type"]).rsplit(".", 1)[-1]: module["path"] for module in _json(folder / "modules.json")}
    if others := sorted(set(paths) - {"Transformer", "Pooling", "Dense", "Normalize"}):
        raise ModelError(
            f"model {folder}: has the layers {', '.join(others)}; expected Transformer, Pooling, Dense and Normalize;"
            " others are not read yet"
        )
    pooling: dict[str, Any] = _json(folder / paths["Pooling"] / "config.json") if "Pooling" in paths else {}
    query, passage = _prompts(folder, pooling)
    return Contract(
        _pooling(folder, pooling) if pooling else "mean",
        "Normalize" in paths,
        length,
        query + "{text}",
        passage + "{text}",
        padding_side="left" if decoder else "right",
        projection=paths.get("Dense", ""),
    )


def _is_decoder(config: dict[str, Any]) -> bool:
    """Whether a configuration is that of a model that reads from left to right."""
    architectures = " ".join(config.get("architectures") or [])
    if "CausalLM" in architectures:
        return True
    if any(name in architectures for name in ("MaskedLM", "PreTraining", "Encoder")):
        return False
    kind = str(config.get("model_type", "bert")).lower()
    return not any(
        name in kind for name in ("bert", "xlm", "mpnet", "electra", "deberta", "ernie", "t5", "bart", "new")
    )


def _max_length(folder: Path, config: dict[str, Any]) -> int:
    """Tokens: sentence-transformers' own limit, else the least that the model and its tokenizer say; 8,192 at most."""
    limits = folder / "sentence_bert_config.json"
    if limits.is_file() and (given := _json(limits).get("max_seq_length")):
        return min(int(given), LONGEST)
    said = [config.get("max_position_embeddings")]
    if (folder / "tokenizer_config.json").is_file():
        said.append(_json(folder / "tokenizer_config.json").get("model_max_length"))
    return int(min([LONGEST, *(number for number in said if number)]))


def _prompts(folder: Path, pooling: dict[str, Any]) -> tuple[str, str]:
    """What sentence-transformers puts before queries and before passages."""
    path = folder / "config_sentence_transformers.json"
    prompts = (_json(path).get("prompts") or {}) if path.is_file() else {}
    query = prompts.get("query") or ""
    passage = prompts.get("document") or prompts.get("passage") or ""
    if (query or passage) and pooling.get("include_prompt") is False:
        raise ModelError(f"model {folder}: pools without its prompts; expected include_prompt: true; not read yet")
    return query, passage


def _pooling(folder: Path, config: dict[str, Any]) -> Literal["cls", "mean", "last_token"]:
    given = config.get("pooling_mode") or [
        name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode_") and on
    ]
    modes = [given] if isinstance(given, str) else list(given)
    if len(modes) == 1 and modes[0] in POOLINGS:
        return POOLINGS[modes[0]]
    raise ModelError(f"model {folder}: pools by {', '.join(modes) or 'nothing'}; expected cls, mean or lasttoken alone")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelError(f"{path}: missing; expected a Hugging Face model folder; check the path") from None
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); fetch or save the model again") from None
