"""Needs of jobs at plan time: the sizes of their passes and data, for the memory model in
`ratchet.models.meta.footprint`.

Lengths are the largest ones that the settings allow, so the memory is an upper bound where texts are shorter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import InputError
from ratchet.jobs import planned_rows
from ratchet.models.pass_size import CPU_TOKENS, size_passes
from ratchet.orchestrator.job_interface import Needs, Parents, Resources, Result

if TYPE_CHECKING:  # it imports torch
    from ratchet.models.meta.meta_device import Kind

TEMPLATE = 64
"""Tokens allowed for a template, a task or a prompt."""
SMALL = 5 * 10**8
"""Bytes of weights below which a model on CPUs is not counted: it fits on any machine, and counting takes seconds."""
LESS_INFERENCE = ("batch_tokens=4096", "gpus=2", "quantization=nf4")
LESS_TRAINING = (
    "micro_batch_size=1",
    "gradient_checkpointing=true",
    "quantization=nf4",
    "zero_stage=3",
)
"""Settings that reduce the memory, the cheapest first."""


def add_architecture(result: Result, inputs: Any, parents: Parents) -> Result:
    """Return the predicted result with the metric `architecture`, the folder of the input `base`: a model that the job
    makes of `base` has the same architecture."""
    folder = find_model_folder("base", inputs, parents)
    if folder is None:
        return result
    return replace(result, metrics={**result.metrics, "architecture": str(folder)})


def find_model_folder(field: str, inputs: Any, parents: Parents) -> Path | None:
    """Return the folder of a model input; if a step has yet to make it, a folder of the same architecture."""
    given = getattr(inputs, field)
    known = parents.get(field, Result()).metrics.get("architecture")
    if given is None and known:
        given = Path(str(known))
    if given is not None and (given / "config.json").is_file():
        return given
    return None


@dataclass(frozen=True)
class ModelStep:
    """A planned step that runs or trains a model."""

    config: Any
    inputs: Any
    resources: Resources
    parents: Parents
    folder: Path
    """The model, or a folder of the same architecture."""

    def bound_length(self, limit: int, field: str, texts: int = 1) -> int:
        """Return the maximum tokens of a row of `texts` texts: `limit`, or less if the longest text of the data is
        known. A text has at most as many tokens as characters."""
        longest = planned_rows.count(self.parents, field, "longest_text")
        if longest is None:
            return limit
        return min(limit, texts * longest + TEMPLATE)

    def graph_tokens(self, texts: int, length: int, *, on_cpu: int = CPU_TOKENS) -> int:
        """Return the number of tokens whose activations a worker keeps at a time: the tokens of a micro batch, or
        without that setting, as many as the job keeps. texts: number of texts per training step, over all workers.
        on_cpu: maximum on CPUs; on GPUs it is `batch_tokens`."""
        resources = self.resources
        own = -(-texts // (resources.workers or 1))
        if resources.micro_batch_size is not None:
            return min(own, resources.micro_batch_size) * length
        return max(length, min(own * length, resources.batch_tokens if resources.gpus else on_cpu))

    def estimate_inference(self, kind: "Kind", *, length: int, kept: int = 0) -> Needs | None:
        """Return the needs of a job that runs a model without training it. length: tokens per row. kept: number of
        tokens whose keys and values are cached in generation."""
        gpus = self.resources.gpus or 0.0
        if getattr(self.config, "engine", "") == "vllm":
            _check_heads(self.folder, int(gpus))
            return None  # vLLM takes the memory that it is given
        if _is_small(self.folder, self.resources):
            return None
        from ratchet.models.meta import footprint

        _, tokens = size_passes("cuda" if gpus else "cpu", self.resources.batch_tokens)
        found = footprint.estimate_inference(
            self.folder,
            kind,
            self.config,
            gpus,
            rows=max(1, tokens // length),
            length=length,
            has_adapter=self.inputs.adapter is not None or "adapter" in self.parents,
            kept=kept,
        )
        return Needs(**found, remedies=LESS_INFERENCE) if found else None

    def estimate_training(
        self, kind: "Kind", *, length: int, tokens: int, teacher: Path | None = None, **kept: int
    ) -> Needs | None:
        """Return the needs of a finetuning job.

        length: tokens per text. tokens: number of tokens whose activations a worker keeps at a time. teacher: a model
        that runs beside the trained one. kept: `vectors`, the number of embeddings that a training step keeps, or
        `labels`, the number of tokens whose logits are kept."""
        folders = [self.folder]
        if teacher is not None:
            folders.append(teacher)
        if all(_is_small(folder, self.resources) for folder in folders):
            return None
        from ratchet.models.meta import footprint

        found = footprint.estimate_training(
            self.folder,
            kind,
            self.config,
            self.resources.gpus or 0.0,
            self.resources.workers or 1,
            rows=max(1, tokens // length),
            length=length,
            teacher=teacher,
            **kept,
        )
        return Needs(**found, remedies=LESS_TRAINING) if found else None


Estimate = Callable[..., Needs | None]


def of_model(estimate: Callable[[ModelStep], Needs | None]) -> Estimate:
    """Make a function of a ModelStep the function `needs` of a job with the input `model`, or `base`, which is trained.
    That raises InputError for a number of GPUs that a worker cannot use, and returns None if the architecture is not
    known yet."""

    def estimate_step(
        config: Any, inputs: Any, resources: Resources, parents: Parents
    ) -> Needs | None:
        field = "base"
        if hasattr(inputs, "model"):
            field = "model"
        gpus = resources.gpus or 0.0
        if field == "base" and gpus not in (0, 1):
            raise InputError(
                f"gpus: {gpus:g} per worker given; expected 0 or 1, since a training worker uses one GPU; set gpus=1"
                " and raise workers"
            )
        if gpus > 1 and not gpus.is_integer():
            raise InputError(
                f"gpus: {gpus:g} per worker given; expected at most 1, or a whole number"
            )
        folder = find_model_folder(field, inputs, parents)
        if folder is None:
            return None
        return estimate(ModelStep(config, inputs, resources, parents, folder))

    return estimate_step


def _is_small(folder: Path, resources: Resources) -> bool:
    if resources.gpus:
        return False
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) < SMALL


def _check_heads(folder: Path, gpus: int) -> None:
    """Raise InputError for a number of GPUs over which vLLM cannot divide the attention heads of a model."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).get_text_config()  # with the defaults of its class
    heads = int(config.num_attention_heads)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    if gpus > 1 and (heads % gpus or max(groups, gpus) % min(groups, gpus)):
        raise InputError(
            f"gpus: {gpus} per worker given; expected a divisor of the model's {heads} attention heads, and a divisor"
            f" or multiple of its {groups} key-value heads, which vLLM divides over them; give another number"
        )
