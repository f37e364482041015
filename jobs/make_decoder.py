"""make_decoder: a small decoder with random weights and a tokenizer of its own, to train from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobs.job import BadInput, Context, Job, Result


@dataclass(frozen=True)
class Config:
    hidden: int = 256
    """Dimensions of the layers."""
    layers: int = 4
    """How many."""
    heads: int = 4
    """Of attention, in each."""
    vocabulary: int = 1024
    """Tokens at most."""
    positions: int = 1024
    """Tokens of the longest text."""
    seed: int = 42
    """Of the weights."""


@dataclass(frozen=True)
class Inputs:
    examples: Path
    """As `prepare_tasks` writes them."""


def check(config: Config, inputs: Inputs) -> None:
    for name, least in (("hidden", 8), ("layers", 1), ("heads", 1), ("vocabulary", 300), ("positions", 16)):
        if getattr(config, name) < least:
            raise BadInput(f"make_decoder.{name}: {getattr(config, name)} given; expected {least} or more")
    if config.hidden % (2 * config.heads):
        raise BadInput(f"make_decoder.heads: {config.heads} given; expected to divide half of hidden ({config.hidden})")


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from data.tables import read_shards
    from models.fresh import save_decoder

    rows = read_shards(inputs.examples, ["system", "questions", "targets"]).to_pylist()
    texts = (text for row in rows for text in (row["system"], *row["questions"], *row["targets"]))
    parameters = save_decoder(context.out, texts, **vars(config))
    return Result({"parameters": parameters})


JOB = Job("make_decoder", version=1, config=Config, inputs=Inputs, run=run, check=check)
