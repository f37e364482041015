"""The work of init_decoder."""

from __future__ import annotations

from ratchet.data.tables import read_shards
from ratchet.jobs.answers.init_decoder import Config, Inputs
from ratchet.models.decoder.tiny_decoder import save_decoder
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    rows = read_shards(inputs.samples, ["system", "questions", "targets"]).to_pylist()
    texts = (text for row in rows for text in (row["system"], *row["questions"], *row["targets"]))
    parameters = save_decoder(
        context.out,
        texts,
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        positions=config.max_position_embeddings,
        seed=config.seed,
    )
    return Result({"parameters": parameters})
