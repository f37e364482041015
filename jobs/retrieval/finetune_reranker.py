"""finetune_reranker: finetune a reranker (LoRA or all weights) on groups of one positive and mined negatives.

The model with the best metric on reranked held-out lists is kept.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.directions import find_direction
from ratchet.jobs.model_checks import check_reranker_model, check_target_modules
from ratchet.jobs.prompt_settings import RerankerSettings, describe_prompts, resolve_reranker_config
from ratchet.jobs.training import config as training
from ratchet.models.pass_size import GROUPS_PER_PASS
from ratchet.orchestrator.job_interface import (
    Context,
    Job,
    Needs,
    Parents,
    PositiveInt,
    Result,
    Unit,
)


@dataclass(frozen=True)
class Config(RerankerSettings, training.RetrievalFinetuneConfig):
    num_negatives: PositiveInt = 15
    """Maximum number of mined negatives per query in a training step, sampled anew in each epoch."""
    depth: Annotated[int, Ge(2), Unit("documents")] = 25
    """Number of documents of each held-out list that are reranked in evaluations."""


Inputs = training.RetrievalFinetuneInputs


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return a note on the prompts, and the architecture."""
    training.check_config("finetune_reranker", config, inputs)
    if inputs.base is not None:
        given = resolve_reranker_config(config, inputs.base)
        check_reranker_model(inputs.base, given)
        check_target_modules("finetune_reranker", inputs.base, given.model_kind, config)
    return needs.add_architecture(describe_prompts(config, inputs, parents), inputs, parents)


@needs.of_model("base")
def estimate_needs(step: needs.ModelStep) -> Needs | None:
    config = step.config
    resources = step.resources
    given = resolve_reranker_config(config, step.folder)
    length = step.bound_length(given.max_length, "corpus", texts=2)
    group = (1 + config.num_negatives) * length
    own = -(-config.batch_size // (resources.workers or 1))
    tokens = min(own, resources.micro_batch_size or GROUPS_PER_PASS) * group
    return step.estimate_training(given.model_kind, length=length, tokens=tokens)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np

    from ratchet.data.significance import compute_p_value
    from ratchet.data.tables import read_shards
    from ratchet.jobs.retrieval.reranker_training import RerankerTask, evaluate_lists
    from ratchet.jobs.training.finetuning import run_finetuning
    from ratchet.jobs.training.teacher_gate import TeacherGate, drop_refused_teacher
    from ratchet.models.reranker import reranker

    if (inputs.valid is None) != (inputs.ranking is None):
        raise InputError(
            "finetune_reranker: one of valid and ranking given; expected both or none; give the other"
        )
    usable = reranker.can_score(inputs.base)
    config = drop_refused_teacher(config, inputs.mined)
    result, history = run_finetuning(context, config, RerankerTask, inputs, base_is_usable=usable)
    gate = TeacherGate(config.metric, None, None, 1.0)
    if inputs.valid is not None and inputs.ranking is not None:
        ranks = read_shards(inputs.ranking, ["ranks"])["ranks"].to_pylist()
        before = evaluate_lists(config.metric, read_shards(inputs.valid), ranks)
        tried = [history.start_sums]
        if result.metrics["kept"] not in ("base", "current_best"):
            tried = history.sums
        sums = np.array([one["all"] for one in tried])
        p_value = compute_p_value(np.array(before.sums["all"]), sums)
        after = float(result.metrics[f"valid/{config.metric}"])
        gate = TeacherGate(config.metric, before.metrics[config.metric], after, p_value)
    gate.write(context.out / "teacher_gate")
    return replace(result, metrics={**result.metrics, "teacher_gate": str(gate)})


JOB = Job(
    "finetune_reranker",
    Config,
    Inputs,
    run,
    version=3,
    check=check,
    needs=estimate_needs,
    divide=training.divide_batches,
    outputs=("adapter", "model", "checkpoint-*", "teacher_gate"),
    metrics=training.list_training_metrics,
    direction=find_direction,
)
