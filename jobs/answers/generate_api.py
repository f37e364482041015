"""generate_api: answer a task's single-turn questions by a model behind an OpenAI-compatible API.

The output is the same as that of `generate`. The key is read from an environment variable, and is not part of the
fingerprint. Answers are stored as they arrive, so a killed run repeats no request.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ratchet.errors import InputError
from ratchet.jobs.distributed.requests import CHARACTERS_PER_TOKEN, OpenAIServer, check_openai
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Neutral,
    NonNegativeFloat,
    Parents,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Result,
    Seed,
    Tokens,
    Unit,
)


@dataclass(frozen=True)
class Config:
    url: str
    """Base URL of the API, such as http://localhost:8000/v1."""
    model: str = ""
    """Name of the model in requests. Empty: the first that the server lists."""
    num_completions: PositiveInt = 1
    """Completions per question."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature. 0: greedy decoding."""
    top_p: PositiveFraction = 1.0
    """Sample only from the most likely tokens, up to this total probability. 1: from all tokens."""
    max_new_tokens: Tokens = 512
    """Maximum length of an answer. A longer one is cut off there and marked as truncated."""
    seed: Seed = 42
    """Seed that is sent to the server."""
    concurrency: Annotated[PositiveInt, Unit("requests"), Neutral()] = 16
    """Maximum number of concurrent requests."""
    timeout: Annotated[PositiveFloat, Unit("seconds"), Neutral()] = 120.0
    """Maximum time without data from the server. The request is then tried again."""
    key_variable: Annotated[str, Neutral()] = "OPENAI_API_KEY"
    """Name of the environment variable with the API key. It ends with `_API_KEY`."""
    price: Annotated[tuple[NonNegativeFloat, NonNegativeFloat], Neutral()] = (0.0, 0.0)
    """Price of a million tokens of prompts and of answers, for the cost that plan and table show."""


@dataclass(frozen=True)
class Inputs:
    samples: Path
    """Samples of single-turn questions."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    check_openai("generate_api", config)
    if config.num_completions > 1 and config.temperature == 0:
        raise InputError(
            f"generate_api.num_completions: {config.num_completions} given; expected 1 at temperature 0, where all"
            " would be the same; raise temperature"
        )
    known = parents.get("samples", Result()).metrics
    prompts = int(known.get("prompts", 0))
    if not prompts:
        return Result()
    asked = prompts * int(known.get("prompt_characters", 0)) // CHARACTERS_PER_TOKEN
    answered = prompts * config.num_completions * config.max_new_tokens
    note = (
        f"about {prompts:,} requests: {asked:,} tokens, and at most {answered:,} tokens in answers"
    )
    if any(config.price):
        note += f", at most {compute_cost(config, asked, answered):,.2f}"
    return Result(note=note)


def compute_cost(config: Config, asked: int, answered: int) -> float:
    return (asked * config.price[0] + answered * config.price[1]) / 1e6


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import list_shards
    from ratchet.data.tasks.task import read_task_file, write_task_name
    from ratchet.jobs.distributed.api_shards import answer_shards

    ask = partial(ask_model, OpenAIServer("generate_api", config), config)
    shards = list_shards(inputs.samples)
    counts = answer_shards(context, shards, read_requests, ask, write_answers, config.concurrency)
    write_task_name(context.out, **read_task_file(inputs.samples))
    asked, answered = counts["prompt_tokens"], counts["tokens"]
    metrics: dict[str, float] = {
        "samples": counts["rows"],
        "prompt_tokens": asked,
        "tokens": answered,
    }
    if any(config.price):
        metrics["cost"] = compute_cost(config, asked, answered)
    return Result(metrics)


def read_requests(shard: Path) -> tuple[Any, Any]:
    from ratchet.jobs.answers.answering import read_samples

    samples = read_samples(shard)
    return samples, samples


def ask_model(server: OpenAIServer, config: Config, sample: Any) -> dict[str, Any]:
    """Return the server's answers to a sample, whether each is truncated, and the numbers of tokens."""
    ((question, _),) = sample.turns
    messages: list[Any] = [{"role": "user", "content": question}]
    if sample.system:
        messages.insert(0, {"role": "system", "content": sample.system})
    found: dict[str, Any] = {"texts": [], "truncated": [], "asked": 0, "answered": 0}
    with server.errors():
        while len(found["texts"]) < config.num_completions:
            made = server.client.chat.completions.create(
                model=server.model,
                messages=messages,
                n=config.num_completions - len(found["texts"]),  # some servers answer once
                temperature=config.temperature,
                top_p=config.top_p,
                max_tokens=config.max_new_tokens,
                seed=config.seed + len(found["texts"]),
            )
            for choice in made.choices:
                found["texts"].append(choice.message.content or "")
                found["truncated"].append(choice.finish_reason == "length")
            found["asked"] += made.usage.prompt_tokens if made.usage else 0
            found["answered"] += made.usage.completion_tokens if made.usage else 0
    return found


def write_answers(target: Path, content: Any, answers: Any) -> dict[str, int]:
    """Write rows of COMPLETIONS."""
    import pyarrow as pa

    from ratchet.data.tables import write_table
    from ratchet.data.tasks.answers import COMPLETIONS
    from ratchet.data.tasks.task import sample_to_row

    rows = []
    for sample, answer in zip(content, answers, strict=True):
        row = sample_to_row(sample) | {"answers": [[text] for text in answer["texts"]]}
        row["truncated"] = [[cut] for cut in answer["truncated"]]
        rows.append(row)
    write_table(target, pa.Table.from_pylist(rows, COMPLETIONS))
    asked = sum(answer["asked"] for answer in answers)
    answered = sum(answer["answered"] for answer in answers)
    return {"rows": len(rows), "prompt_tokens": asked, "tokens": answered}


JOB = Job(
    "generate_api",
    Config,
    Inputs,
    run,
    check=check,
    resources=("retries",),
    metrics=("samples", "prompt_tokens", "tokens", "cost"),
)
