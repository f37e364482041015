"""rerank: score lists of documents with a reranker: mined lists (for distillation) or rankings.

The columns of the input are kept. For each column of document ids, a column of scores is added:

    positives, negatives  ->  teacher_positive_scores, teacher_negative_scores
    documents             ->  teacher_scores

Positives and negatives are also written as FlagEmbedding JSONL, with `pos_scores` and `neg_scores`.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.distributed.piece_size import MODEL_PIECES, divide_input
from ratchet.jobs.inference import (
    LOADED_MODEL,
    InferenceConfig,
    check_inference,
    check_quantization,
)
from ratchet.jobs.model_checks import check_reranker_model
from ratchet.jobs.prompt_settings import (
    RerankerSettings,
    describe_prompts,
    list_instructions,
    resolve_reranker_config,
)
from ratchet.orchestrator.job_interface import (
    MAP_RESOURCES,
    Context,
    Job,
    Needs,
    Parents,
    PositiveInt,
    Result,
    Unit,
)

if TYPE_CHECKING:
    from ratchet.jobs.distributed.piece_runner import ReportProgress
    from ratchet.jobs.distributed.pieces import Piece
    from ratchet.jobs.distributed.shard_map import ModelMap


@dataclass(frozen=True)
class Config(InferenceConfig, RerankerSettings):
    depth: Annotated[PositiveInt, Unit("documents")] | None = None
    """Number of top documents of each ranking to score. None: all. Mined lists are always scored as a whole."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A reranker: a Hugging Face model folder."""
    lists: Path
    """Shards of queries with lists of document ids, as written by `mine` or `evaluate_retrieval`."""
    corpus: Path
    """Shards of documents (columns id and text) that contain all documents of the lists."""
    adapter: Path | None = None
    """A LoRA adapter for the model."""
    teacher_gate: Path | None = None
    """The output `teacher_gate` of `finetune_reranker`. If the gate is closed, the model is not used as a teacher: the
    lists are copied without scores, and finetuning learns from the labels alone. None: no gate."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    check_inference("rerank", config, inputs, "reranker")
    if parents.get("teacher_gate", Result()).metrics.get("teacher_gate") == "closed":
        raise InputError(
            "rerank.teacher_gate: a reranker without held-out queries given; expected some, since it becomes a teacher"
            " only if it improves their lists; set validation_fraction, or finetune_reranker.teacher_gate=open, or"
            " distillation=none"
        )
    if inputs.model is not None:
        given = resolve_reranker_config(config, inputs.model, inputs.adapter)
        check_reranker_model(inputs.model, given)
    return describe_prompts(config, inputs, parents)


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    reranker_config = resolve_reranker_config(step.config, step.folder)
    length = step.bound_length(reranker_config.max_length, "corpus", texts=2)
    return step.estimate_inference(reranker_config.model_kind, length=length)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.scored_lists import check_lists, describe_teacher, write_flag_embedding
    from ratchet.data.tables import list_shards
    from ratchet.jobs.distributed.pieces import count_rows
    from ratchet.jobs.distributed.shard_map import map_model
    from ratchet.jobs.training import teacher_gate

    check_lists(inputs.lists)
    if inputs.teacher_gate is not None:
        gate = teacher_gate.read(inputs.teacher_gate)
        if not gate.is_open:
            shards = list_shards(inputs.lists)
            for path in [*shards, *inputs.lists.glob("*.jsonl")]:
                shutil.copyfile(path, context.out / path.name)
            gate.write(context.out)
            why = str(gate).removeprefix("no: ")
            return Result(
                {
                    "queries": count_rows(shards, ["id"]),
                    "pairs": 0,
                    "tokens": 0,
                    "teacher_gate": str(gate),
                },
                note=f"the teacher is not used: {why}",
            )
    # At plan time the model may not have existed.
    check_quantization("rerank", config.quantization, inputs.model)
    own = _make_map(context, config, inputs)
    counts = map_model(context, own, describe_map)
    write_flag_embedding(context.out, inputs.corpus)
    accuracy, note = describe_teacher(counts)
    made = {"queries": own.rows, "pairs": counts["pairs"], "tokens": counts["tokens"]}
    return Result({**made, **accuracy, "dtype": own.config.dtype}, note=note)


def describe_map(context: Context, config: Config, inputs: Inputs) -> "ModelMap | None":
    from ratchet.jobs.training import teacher_gate

    if inputs.teacher_gate is not None and not teacher_gate.read(inputs.teacher_gate).is_open:
        return None
    return _make_map(context, config, inputs)


def _make_map(context: Context, config: Config, inputs: Inputs) -> "ModelMap":
    from ratchet.jobs.distributed.shard_map import make_model_map

    return make_model_map(context, Worker, config, inputs, inputs.lists, ["id", "text"])


class Worker:
    """Scores pieces of shards of lists. Each worker has a copy of the model."""

    def __init__(self, inputs: Inputs, config: Config, batch_tokens: int, device: str) -> None:
        from ratchet.data.scored_lists import Lists
        from ratchet.models.reranker import reranker

        self.reranker = reranker.load(
            inputs.model,
            inputs.adapter,
            dtype=config.dtype,
            device=device,
            quantization=config.quantization,
            reranker_config=resolve_reranker_config(config, inputs.model, inputs.adapter),
        )
        self.config = config
        self.batch_tokens = batch_tokens
        self.lists = Lists(inputs.lists, inputs.corpus, config.depth)

    def __call__(self, piece: "Piece", target: Path, report: "ReportProgress") -> dict[str, int]:
        from ratchet.data.scored_lists import write_scores

        table, texts = self.lists.read(piece.source, piece.first, piece.rows)
        pairs = max(1, sum(map(len, texts)))
        tokens = 0

        def count(done: int, seen: int) -> None:
            nonlocal tokens
            tokens = seen
            report(done * len(table) // pairs, seen)

        queries = table["text"].to_pylist()
        own = list_instructions(self.config, table)
        scores = self.reranker.score(
            queries, texts, own, batch_tokens=self.batch_tokens, progress=count
        )
        return write_scores(target, table, scores, tokens)


JOB = Job(
    "rerank",
    Config,
    Inputs,
    run,
    divide=divide_input("lists", MODEL_PIECES),
    loads=LOADED_MODEL,
    resources=(*MAP_RESOURCES, "batch_tokens"),
    check=check,
    needs=estimate_needs,
)
