"""teacher_logprobs: compute a teacher's most likely tokens at each label of samples, as soft targets of `sft`.

Computed once per teacher and data. Teacher and student must have the same vocabulary; from a teacher with another
vocabulary, distill its answers (`rejection_sample`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.answers.chat_options import TALK, check_chat, load_decoder, read_chat
from ratchet.jobs.answers.lengths import SAMPLE
from ratchet.jobs.distributed.piece_size import MODEL_PIECES, divide_input
from ratchet.jobs.inference import LOADED_MODEL, InferenceConfig, check_inference
from ratchet.jobs.model_checks import check_decoder_model, check_length
from ratchet.orchestrator.job_interface import (
    MAP_RESOURCES,
    Context,
    Job,
    Needs,
    Parents,
    Result,
    Tokens,
    Unit,
)

if TYPE_CHECKING:
    from ratchet.jobs.distributed.piece_runner import ReportProgress
    from ratchet.jobs.distributed.pieces import Piece
    from ratchet.jobs.distributed.shard_map import ModelMap


@dataclass(frozen=True)
class Config(InferenceConfig):
    top_k: Annotated[int, Ge(2), Unit("tokens")] = 32
    """Number of most likely tokens to store per label."""
    max_length: Tokens | None = None
    """Maximum length of a sample. A longer sample is an error. None: 2048, or as many as the teacher has positions."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """The teacher: a Hugging Face folder of a causal language model."""
    samples: Path
    """Samples written by `prepare_tasks`."""
    student: Path
    """The model to be trained. Only its config and its tokenizer are read."""
    adapter: Path | None = None
    """A LoRA adapter for the teacher."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Check the arguments of the chat template, and note a maximum length that is shorter than usual."""
    check_inference("teacher_logprobs", config, inputs, "decoder")
    if inputs.model is not None and inputs.student is not None:
        from ratchet.models.decoder import decoder

        for folder in (inputs.model, inputs.student):
            check_decoder_model(folder)
        decoder.check_head(inputs.model)
        length = SAMPLE.resolve(config, inputs.model)
        check_length("teacher_logprobs.max_length", inputs.model, length)
        decoder.check_same_tokens(inputs.model, inputs.student)
    check_chat(inputs, parents)
    return Result(note=SAMPLE.describe(config, inputs.model))


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    return step.estimate_inference("causal", length=SAMPLE.resolve(step.config, step.folder))


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow.parquet as pq

    from ratchet.data.tasks.task import read_task_file, write_task_name
    from ratchet.jobs.distributed.shard_map import map_model
    from ratchet.models.decoder import decoder

    own = describe_map(context, config, inputs)
    conversations = decoder.load_conversations(inputs.model, read_chat(inputs.samples)[0])
    limit = SAMPLE.resolve(config, inputs.model)
    # Check lengths before the model runs: a higher limit is another step, and computed shards would be lost.
    for path in own.shards:
        rows = pq.read_table(path).to_pylist()
        for row, tokens in zip(rows, conversations.tokenize_samples(map(TALK, rows)), strict=True):
            if len(tokens.ids) > limit:
                raise InputError(
                    f"teacher_logprobs.max_length: sample {row['id']} has {len(tokens.ids)} tokens; expected at most"
                    f" {limit}; raise it, or remove the sample"
                )
    counts = map_model(context, own, describe_map)
    write_task_name(context.out, **read_task_file(inputs.samples))
    return Result(
        {
            "samples": counts["rows"],
            "tokens": counts["tokens"],
            "top_k": config.top_k,
            "dtype": own.config.dtype,
        }
    )


def describe_map(context: Context, config: Config, inputs: Inputs) -> "ModelMap":
    from ratchet.data.tasks.task import SAMPLES
    from ratchet.jobs.distributed.shard_map import make_model_map

    return make_model_map(context, Worker, config, inputs, inputs.samples, SAMPLES.names)


class Worker:
    """Writes ratchet.data.tasks.answers.TEACHER_LOGPROBS for pieces of shards of samples."""

    def __init__(self, config: Config, inputs: Inputs, batch_tokens: int, device: str) -> None:
        from transformers import AutoConfig

        self.config = config
        self.batch_tokens = batch_tokens
        self.decoder = load_decoder(config, inputs, device)
        self.rows = AutoConfig.from_pretrained(inputs.student).get_text_config().vocab_size

    def __call__(self, piece: "Piece", target: Path, report: "ReportProgress") -> dict[str, int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ratchet.data.tables import write_table
        from ratchet.data.tasks.answers import TEACHER_LOGPROBS
        from ratchet.models.batching import batch_by_tokens
        from ratchet.models.losses.causal_lm_loss import top_logprobs

        samples = piece.take(pq.read_table(piece.source)).to_pylist()
        tokens = self.decoder.conversations.tokenize_samples(map(TALK, samples))
        made = {}
        done = 0
        for batch in batch_by_tokens([len(one.ids) for one in tokens], self.batch_tokens):
            chosen = [tokens[i] for i in batch]
            found = top_logprobs(self.decoder, chosen, self.config.top_k, rows=self.rows)
            for i, one in zip(batch.tolist(), found, strict=True):
                made[i] = {
                    "id": samples[i]["id"],
                    "top_k": one.ids_TK.shape[1],
                    "token_ids": one.ids_TK.ravel(),
                    "logprobs": one.logprob_TK.ravel(),
                }
            done += sum(len(one.ids) for one in chosen)
            report(len(made), done)
        rows = [made[i] for i in sorted(made)]
        write_table(target, pa.Table.from_pylist(rows, TEACHER_LOGPROBS))
        return {"rows": len(rows), "tokens": done}


JOB = Job(
    "teacher_logprobs",
    Config,
    Inputs,
    run,
    divide=divide_input("samples", MODEL_PIECES),
    loads=LOADED_MODEL,
    resources=(*MAP_RESOURCES, "batch_tokens"),
    check=check,
    needs=estimate_needs,
    metrics=("samples", "tokens", "top_k", "dtype"),
)
