"""Implementation of `init_decoder`: trains a tokenizer, and writes a decoder with random weights."""

from __future__ import annotations

from ratchet.data.tables import read_shards
from ratchet.jobs.answers.init_decoder import Config, Inputs
from ratchet.models.decoder.tiny_decoder import save_decoder
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    rows = read_shards(inputs.samples, ["system", "questions", "targets"]).to_pylist()
    texts = (text for row in rows for text in (row["system"], *row["questions"], *row["targets"]))
    sizes = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
    }
    parameters = save_decoder(context.out, texts, vocab_size=config.vocab_size, seed=config.seed, **sizes)
    return Result({"parameters": parameters})
