"""prepare_judgement: make prompts for `generate` that ask a judge how well each query fits its document."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ratchet.models.embedder.encoding_config import check_template
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result, Unit

SHARD_ROWS = 128


@dataclass(frozen=True)
class Config:
    prompt_template: str | None = None
    """Template of prompts, with `{query}` and `{document}`, that asks for a score from 1 to 5; `\\n` is a line break.
    None: the template of the task `judgement`."""
    max_characters: Annotated[PositiveInt, Unit("characters")] = 4000
    """Maximum length of a document in a prompt. Longer documents are truncated."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Shards of queries with their positives, whose texts are shown together."""
    corpus: Path
    """Shards of documents."""


def find_template(config: Config) -> str:
    """Return the prompt template. Raises ModelError for a template without its placeholders."""
    from ratchet.data.tasks.judgement import PROMPT

    if config.prompt_template is None:
        return PROMPT
    template = config.prompt_template.replace("\\n", "\n")
    check_template("prepare_judgement.prompt_template", template, ("query", "document"), ())
    return template


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    from ratchet.data.tasks.judgement import NAME

    find_template(config)
    return Result({"task": NAME})


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import Texts, read_shards, write_shards
    from ratchet.data.tasks.judgement import NAME, make_prompt
    from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name

    text_of = Texts(read_shards(inputs.corpus, ["id", "text"]))
    template = find_template(config)
    rows = []
    for query in read_shards(inputs.queries, ["id", "text", "positives"]).to_pylist():
        document = "\n\n".join(text_of[name] for name in query["positives"])
        turn = make_prompt(template, query["text"], document[: config.max_characters]), ""
        rows.append(sample_to_row(Sample(query["id"], query["id"], "", (turn,), {"score": 0})))
    write_shards(context.out, rows, SAMPLES, SHARD_ROWS)
    write_task_name(context.out, NAME)
    return Result({"task": NAME, "prompts": len(rows)})


JOB = Job(
    "prepare_judgement",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("task", "prompts"),
)
