"""Commands that run a recipe: `ratchet evaluate A B --data D` is the run of `evaluate` with models=A,B and data=D."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class RecipeCommand:
    """A command, which has the name of its recipe."""

    help: str
    examples: str
    words: Mapping[str, str]
    """Parameter of the recipe -> its name in the usage. The last one takes all words that are left, joined by commas,
    if its name ends in `...`."""
    options: Mapping[str, str]
    """Parameter of the recipe -> the help of the option `--PARAMETER`."""
    required: tuple[str, ...] = ()
    """Options that must be given."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the recipe -> the help of the option `--PARAMETER`, which makes it true."""
    target: str = ""
    """The name, in the usage, of the new folder for the result of the recipe. Empty: it has none."""

    def add_arguments(self, sub: argparse.ArgumentParser) -> None:
        for name, shown in self.words.items():
            several = {"nargs": "+"} if shown.endswith("...") else {}
            sub.add_argument(name, metavar=shown.removesuffix("..."), **several)  # type: ignore[arg-type]
        if self.target:
            sub.add_argument("target", metavar=self.target, type=Path, help="a new folder")
        for name, text in self.flags.items():
            sub.add_argument(f"--{name}", action="store_const", const="true", help=text)
        for name, text in self.options.items():
            option = f"--{name.replace('_', '-')}"
            sub.add_argument(option, dest=name, metavar="VALUE", help=text, required=name in self.required)

    def list_settings(self, arguments: argparse.Namespace) -> list[str]:
        """Return the `name=value` settings of the recipe."""
        given = {name: getattr(arguments, name) for name in (*self.words, *self.options, *self.flags)}
        if self.target and given.get("name") is None:
            given["name"] = arguments.target.name
        texts = {name: ",".join(value) if isinstance(value, list) else value for name, value in given.items()}
        return [f"{name}={text}" for name, text in texts.items() if text is not None]


RECIPE_COMMANDS = {
    "evaluate": RecipeCommand(
        help="compare models on your data: exact metrics, differences with intervals, latency",
        examples="""\
examples:
  ratchet evaluate bm25 sentence-transformers/all-MiniLM-L6-v2 20261124-2311:embedder --data beir/scifact
  ratchet evaluate base/ finetuned/ --data questions.jsonl --reranker 20261124-2311:reranker

A model is a folder, a hub id, a model of a run (`ratchet models` lists them) or bm25. The others are compared with the
first, query by query. Vectors are kept in the store: a model that was evaluated on the data before is not run again.

""",
        words={"models": "MODEL..."},
        options={
            "data": "queries with their documents: a BEIR or NanoBEIR folder, pairs, ... (docs/data.md)",
            "reranker": "a model, or the address of an API, that orders each model's first documents",
            "depth": "documents that are reranked (default: 25)",
        },
        required=("data",),
    ),
    "export": RecipeCommand(
        help="write a model as a folder for other libraries, with a model card",
        examples="""\
examples:
  ratchet export 20261124-2311 my-embedder          the model that the run ended with
  ratchet export 20261124-2311:reranker my-reranker --license apache-2.0
  ratchet export 20261124-2311:sft my-adapter --adapter

The folder is loaded by sentence-transformers, transformers, FlagEmbedding and PEFT, as far as they are installed and
the model is of their kind, and nothing is written where one of them gives other results than Ratchet.

""",
        words={"model": "MODEL"},
        target="DIR",
        flags={"adapter": "write the LoRA adapter alone, with the name of its base, for PEFT"},
        options={
            "name": "what the model card calls the model, such as its id on the hub",
            "license": "the license in the model card, an identifier of the hub such as apache-2.0",
        },
    ),
}
