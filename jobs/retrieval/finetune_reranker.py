"""finetune_reranker: finetune a reranker (LoRA or all weights) on groups of one positive and mined negatives.

The model with the best metric on reranked held-out lists is kept.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs import needs
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
    teacher_gate: Literal["tested", "open"] = "tested"
    """`tested`: the reranker is used as a teacher only if it significantly improves the held-out lists. `open`: always,
    also if nothing is held out."""


Inputs = training.RetrievalFinetuneInputs


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return a note on the prompts, and the architecture."""
    training.check_config("finetune_reranker", config, inputs, parents)
    if inputs.base is not None:
        given = resolve_reranker_config(config, inputs.base)
        check_reranker_model(inputs.base, given)
        check_target_modules("finetune_reranker", inputs.base, given.model_kind, config)
    known = needs.add_architecture(describe_prompts(config, inputs, parents), inputs, parents)
    if "valid" not in parents and inputs.valid is None and config.teacher_gate == "tested":
        known = replace(known, metrics={**known.metrics, "teacher_gate": "closed"})
    return training.add_epochs(known, config)


@needs.of_model
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
    from ratchet.jobs.training.evaluation import draw_rows
    from ratchet.jobs.training.finetuning import number_evaluations, run_finetuning
    from ratchet.jobs.training.teacher_gate import TeacherGate, drop_refused_teacher
    from ratchet.models.reranker import reranker

    if (inputs.valid is None) != (inputs.ranking is None):
        raise InputError(
            "finetune_reranker: one of valid and ranking given; expected both or none; give the other"
        )
    usable = reranker.can_score(inputs.base)
    config = drop_refused_teacher(config, inputs.mined)
    result, history = run_finetuning(context, config, RerankerTask, inputs, base_is_usable=usable)
    gate = TeacherGate(config.metric, None, None, 1.0, config.teacher_gate)
    gates = [gate] * len(history.evaluations)
    folder = context.out / "teacher_gate"
    if inputs.valid is not None and inputs.ranking is not None:
        valid = read_shards(inputs.valid)
        drawn = draw_rows(valid, config.eval_fraction, config.seed)
        ranks = read_shards(inputs.ranking, ["ranks"]).take(drawn)["ranks"].to_pylist()
        before = evaluate_lists(config.metric, valid.take(drawn), ranks)

        def judge(after: float, tried: list[dict[str, list[float]]], chosen: int) -> TeacherGate:
            sums = np.array([one["all"] for one in tried])
            p_value = compute_p_value(np.array(before.sums["all"]), sums, chosen=chosen)
            first = before.metrics[config.metric]
            return TeacherGate(config.metric, first, after, p_value, config.teacher_gate)

        gates = []
        for number, evaluation in enumerate(history.evaluations):
            gates.append(judge(evaluation[config.metric], history.sums, number))
        assert history.best is not None
        gate = gates[history.best]
        if result.metrics["kept"] in ("base", "current_best"):
            gate = judge(history.start[config.metric], [history.start_sums], 0)
    if config.keep == "all":  # for `choose_checkpoint`
        for one, number in zip(gates, number_evaluations(config, history), strict=True):
            one.write(folder / f"{config.unit}-{number}")
    gate.write(folder)
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
    outputs=(*training.OUTPUTS, "teacher_gate"),
    metrics=training.list_training_metrics,
)
