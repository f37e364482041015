"""finetune_embedder_pairs: finetune an embedder (LoRA) on pairs of statements, with a global batch of any size."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs import needs, planned_rows
from ratchet.jobs.prompt_settings import EncodingSettings, describe_prompts
from ratchet.jobs.training import config as training
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_kind import read_object
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Needs,
    Parents,
    PositiveFloat,
    PositiveInt,
    Result,
    Unit,
)


@dataclass(frozen=True)
class Config(EncodingSettings, training.RankFinetuneConfig):
    batch_size: Annotated[int, Ge(2), Unit("pairs")] = 1024
    """Pairs per training step, over all workers. The last pairs of an epoch are left out if they fill no batch."""
    temperature: PositiveFloat = 0.07
    """Temperature of the softmax over the similarities."""
    mask_paper: bool = True
    """Mask other statements of the same paper, which would otherwise be negatives."""
    chunk: Annotated[PositiveInt, Unit("rows")] = 256
    """Number of rows in a tile of the similarity matrix. Smaller tiles take less memory."""
    projection: Annotated[PositiveInt, Unit("dimensions")] | None = None
    """Output dimension of a linear layer after the pooling, which is trained too. None: no new layer."""
    projection_bias: bool = False
    """Whether the new layer has a bias."""
    metric: str = "mrr"
    """Metric on `valid` that selects the model to keep: mrr, map, p@K, r@K, map@K, ndcg@K or hit@K."""


@dataclass(frozen=True)
class Inputs:
    base: Path
    """A Hugging Face model folder."""
    train: Path
    """Statements for training, as written by `prepare_papers`."""
    valid: Path | None = None
    """Held-out statements. For each one, the other statements of its paper are relevant. None: nothing is evaluated,
    and the model of the last epoch is kept."""
    current_best: Path | None = None
    """The current best adapter, which is kept if training does not improve on it. None: improve on the base."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return a note on the prompts. Raises an error for a batch size above the number of pairs."""
    job = "finetune_embedder_pairs"
    adapts = config.method == "lora"
    is_new = config.projection is not None
    rules = [
        ("method", adapts, "lora, since the theorem recipe merges an adapter"),
        ("projection_bias", is_new or not config.projection_bias, "false without projection"),
    ]
    training.require(job, config, rules)
    training.check_config(job, config, inputs, parents)
    if inputs.base is not None:
        training.check_embedder(job, config, inputs)
        folder = read_encoding_config(inputs.base).projection
        kept = "false for a base with a projection, which is kept as it is; leave it out"
        training.require(
            job, config, [("projection_bias", not (folder and config.projection_bias), kept)]
        )
        if config.projection is not None and folder:
            last = folder.rpartition(",")[2]
            dim = read_object(inputs.base / last / "config.json")["out_features"]
            if dim != config.projection:
                raise InputError(
                    f"{job}.projection: {config.projection} given; the base already projects to {dim} dimensions;"
                    " expected that number, or none"
                )
    if planned_rows.count(parents, "valid", "valid/statements") == 0:
        raise InputError(
            f"{job}.valid: no statements are held out; expected some, or no input; set the parameter"
            " validation_fraction=0 of the recipe instead of prepare_papers.validation_fraction"
        )
    pairs = planned_rows.count(parents, "train", "train/pairs")
    if pairs is not None:
        from ratchet.data.pair_batches import check_pairs

        check_pairs(pairs, config.batch_size)
    return describe_prompts(config, inputs, parents, "passage")


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    length = step.config.max_length or read_encoding_config(step.folder).max_length
    texts = 2 * step.config.batch_size
    tokens = step.graph_tokens(texts, length)
    return step.estimate_training("backbone", length=length, tokens=tokens, vectors=texts)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.jobs.statements.pair_training import PairTask
    from ratchet.jobs.training.finetuning import run_finetuning

    is_usable = config.projection is None or bool(read_encoding_config(inputs.base).projection)
    return run_finetuning(context, config, PairTask, inputs, base_is_usable=is_usable)[0]


JOB = Job(
    "finetune_embedder_pairs",
    Config,
    Inputs,
    run,
    check=check,
    needs=estimate_needs,
    divide=training.divide_batches,
    outputs=("adapter", "checkpoint-*", "history.json"),
    metrics=training.list_training_metrics,
)
