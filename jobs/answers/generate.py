"""generate: answer a task's questions with a model: several completions per question, conversations turn by turn.

Shards of samples are distributed over workers. The random numbers of an answer depend only on (seed, sample,
completion, turn), so answers are the same for any number of workers, and a killed run repeats only unfinished shards.
The engine vLLM writes the same tables as transformers, but with other random numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ratchet.errors import InputError
from ratchet.extras import require_extra
from ratchet.jobs import needs
from ratchet.jobs.answers.chat_options import check_chat, count_turns, read_chat
from ratchet.jobs.answers.lengths import PROMPT
from ratchet.jobs.distributed.piece_size import GENERATION_PIECES, count_pieces
from ratchet.jobs.inference import (
    LOADED_MODEL,
    InferenceConfig,
    check_inference,
    check_quantization,
)
from ratchet.jobs.model_checks import check_decoder_model, check_length
from ratchet.orchestrator.job_interface import (
    MAP_RESOURCES,
    Context,
    Division,
    Job,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    Parents,
    PositiveFraction,
    PositiveInt,
    Result,
    Seed,
    Tokens,
    Uses,
)

if TYPE_CHECKING:
    from ratchet.jobs.distributed.shard_map import ModelMap


@dataclass(frozen=True)
class Config(InferenceConfig):
    engine: Annotated[Literal["transformers", "vllm"], Uses("vllm", ("vllm",))] = "transformers"
    """`vllm` is faster for many texts on GPUs (continuous batching). It supports single-turn questions. An adapter is
    merged into the model first."""
    num_completions: PositiveInt = 1
    """Completions per question."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature. 0: greedy decoding."""
    top_p: PositiveFraction = 1.0
    """Sample only from the most likely tokens, up to this total probability. 1: from all tokens."""
    top_k: NonNegativeInt = 0
    """Sample only from this number of most likely tokens. 0: from all tokens."""
    max_new_tokens: Tokens = 512
    """Maximum length of an answer. A longer answer is cut off there and marked as truncated."""
    max_prompt_length: Tokens | None = None
    """Maximum length of a prompt. A longer prompt is an error; prompts are never truncated. None: 4096, or as many as
    the model has positions beside max_new_tokens."""
    measure_latency: bool = False
    """Answer one group at a time and record the seconds it takes. Slower, and the result differs from run to run."""
    allow_other_task: bool = False
    """Allow samples of another task than the model was trained on, such as one with another answer format."""
    seed: Seed = 42
    """Seed of the sampling."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """A Hugging Face folder of a causal language model."""
    samples: Path
    """Samples written by `prepare_tasks` or `prepare_query_generation`."""
    adapter: Path | None = None
    """A LoRA adapter for the model."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Check the arguments of the chat template, and that the model was trained on the task of the samples."""
    from ratchet.data.tasks.task import read_task_name

    if config.num_completions > 1 and config.temperature == 0:
        raise InputError(
            f"generate.num_completions: {config.num_completions} given; expected 1 at temperature 0, where all would be"
            " the same; raise temperature"
        )
    check_inference("generate", config, inputs, "decoder")
    if inputs.model is not None:
        check_decoder_model(inputs.model)
        length = PROMPT.resolve(config, inputs.model) + config.max_new_tokens
        check_length("generate: max_prompt_length + max_new_tokens", inputs.model, length)
    check_engine(config, inputs)
    task = parents.get("samples", Result()).metrics.get("task")
    if inputs.samples is not None:
        task = read_task_name(inputs.samples)
    if task is not None:
        check_same_task(config, inputs, str(task))
    check_chat(inputs, parents)
    return Result(note=PROMPT.describe(config, inputs.model))


def check_same_task(config: Config, inputs: Inputs, task: str) -> None:
    """Raise InputError for an adapter or a model that was trained on another task than that of the samples."""
    from ratchet.data.tasks.task import TASK_FILE, read_task_name

    for kind, folder in (("adapter", inputs.adapter), ("model", inputs.model)):
        if folder is None or config.allow_other_task or not (folder / TASK_FILE).exists():
            continue
        trained = read_task_name(folder)
        if trained != task:
            raise InputError(
                f"generate.{kind}: {folder} was trained on task {trained}, the samples are of task {task}; expected the"
                f" same, since answers are verified in the format of the samples; prepare the samples as {trained},"
                " or set generate.allow_other_task=true"
            )


def check_engine(config: Config, inputs: Inputs) -> None:
    """Raise InputError for a quantization that cannot be, and for settings and samples that vLLM does not support.
    Samples of later steps are not checked."""
    check_quantization("generate", config.quantization, inputs.model)
    if config.engine != "vllm":
        return
    require_extra("generate.engine: 'vllm' given", "vllm", "vllm")
    for name, usable in (("quantization", "none"), ("measure_latency", False)):
        given = getattr(config, name)
        if given != usable:
            raise InputError(
                f"generate.{name}: {given} given; expected {usable} with engine 'vllm', which serves merged weights and"
                " answers all groups at once; or set engine=transformers"
            )
    if 0 < config.temperature < 0.01:
        raise InputError(
            f"generate.temperature: {config.temperature} given; expected 0, or at least 0.01 with engine 'vllm', which"
            " raises lower ones; or set engine=transformers"
        )
    if inputs.samples is None:
        return
    turns = count_turns(inputs.samples)
    if turns > 1:
        raise InputError(
            f"generate.engine: 'vllm' given, for conversations of up to {turns} turns ({inputs.samples}); expected"
            " single-turn questions, since a request passes through the engine once and a second turn needs the answer"
            " to the first; set engine=transformers"
        )


@needs.of_model
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    length = PROMPT.resolve(step.config, step.folder) + step.config.max_new_tokens
    kept = max(length, step.resources.batch_tokens)
    return step.estimate_inference("causal", length=length, kept=kept)


def choose_pieces(config: Config) -> int:
    """Return the argument `pieces` of `map_model`. The samples of a passage are measured together."""
    if config.measure_latency:
        return 0
    return GENERATION_PIECES


def divide(config: Config, inputs: Inputs) -> Division:
    """Divide the samples; vLLM's engines are processes of their own."""
    if config.engine == "vllm":
        return Division(inside=False)
    return Division(most=count_pieces(inputs.samples, choose_pieces(config)))


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tasks.task import read_task_file, read_task_name, write_task_name
    from ratchet.jobs.answers.answering import ShardClient, read_samples, start_conversations
    from ratchet.jobs.distributed.shard_map import map_model
    from ratchet.jobs.distributed.vllm_shards import map_with_vllm
    from ratchet.models.decoder import decoder
    from ratchet.models.decoder.multi_turn import tokenize_prompts

    # At plan time the model and the samples may not have existed.
    check_same_task(config, inputs, read_task_name(inputs.samples))
    check_engine(config, inputs)
    own = describe_map(context, config, inputs)
    config = own.config
    # Lengths are checked before any answer: a higher limit is another step, and answers would be lost.
    conversations = decoder.load_conversations(inputs.model, read_chat(inputs.samples)[0])
    for path in own.shards:
        talks = start_conversations(read_samples(path), 1)
        tokenize_prompts(talks, conversations, config.max_prompt_length)
    if config.engine == "vllm":
        model = inputs.model
        if inputs.adapter is not None:
            model = context.work / "merged"
            decoder.merge(inputs.model, inputs.adapter, model)
            context.files.send(model)
        client = ShardClient(config, inputs)
        counts = map_with_vllm(context, own.shards, model, config.dtype, client, own.rows)
    else:
        counts = map_model(context, own, describe_map)
    write_task_name(context.out, **read_task_file(inputs.samples))
    return Result(
        {
            "samples": counts["rows"],
            "num_completions": config.num_completions,
            "tokens": counts.get("tokens", 0),
            "dtype": config.dtype,
        }
    )


def describe_map(context: Context, config: Config, inputs: Inputs) -> "ModelMap":
    from ratchet.data.tasks.task import SAMPLES
    from ratchet.jobs.answers.answering import Worker
    from ratchet.jobs.distributed.shard_map import make_model_map

    config = replace(config, max_prompt_length=PROMPT.resolve(config, inputs.model))
    pieces = choose_pieces(config)
    return make_model_map(
        context, Worker, config, inputs, inputs.samples, SAMPLES.names, pieces=pieces
    )


def list_loaded(config: Config) -> Sequence[str]:
    """Return what makes the model. vLLM's engines, and runs that are timed, have a model of their own."""
    if config.engine == "vllm" or config.measure_latency:
        return ()
    return LOADED_MODEL


JOB = Job(
    "generate",
    Config,
    Inputs,
    run,
    resources=(*MAP_RESOURCES, "batch_tokens"),
    divide=divide,
    loads=list_loaded,
    check=check,
    needs=estimate_needs,
)
