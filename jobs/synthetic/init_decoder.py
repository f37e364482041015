"""init_decoder: make a small decoder with random weights and its own tokenizer, to train from scratch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Parents,
    PositiveInt,
    Result,
    Seed,
    Unit,
)


@dataclass(frozen=True)
class Config:
    hidden_size: Annotated[int, Ge(8)] = 256
    """Dimension of the hidden states."""
    num_hidden_layers: PositiveInt = 4
    """Number of layers."""
    num_attention_heads: PositiveInt = 4
    """Attention heads per layer."""
    vocab_size: Annotated[int, Ge(300), Unit("tokens")] = 1024
    """Maximum size of the vocabulary."""
    max_position_embeddings: Annotated[int, Ge(16), Unit("tokens")] = 1024
    """Maximum sequence length."""
    seed: Seed = 42
    """Seed of the weights."""


@dataclass(frozen=True)
class Inputs:
    samples: Path
    """Samples written by `prepare_tasks`, on which the tokenizer is trained."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    if config.hidden_size % (2 * config.num_attention_heads):
        raise InputError(
            f"init_decoder.num_attention_heads: {config.num_attention_heads} given; expected a divisor of half of"
            f" hidden_size ({config.hidden_size})"
        )


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import read_shards
    from ratchet.models.decoder.tiny_decoder import save_decoder

    rows = read_shards(inputs.samples, ["system", "questions", "targets"]).to_pylist()
    texts = (text for row in rows for text in (row["system"], *row["questions"], *row["targets"]))
    parameters = save_decoder(
        context.out,
        texts,
        vocab_size=config.vocab_size,
        seed=config.seed,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
    )
    return Result({"parameters": parameters})


JOB = Job(
    "init_decoder",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("parameters",),
)
