"""Settings and checks shared by the jobs that run a model without training it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ratchet.errors import InputError
from ratchet.extras import require_extra
from ratchet.models.model_files import check_folder, check_quantizable, find_config_folder
from ratchet.models.roles import ADAPTED, Usage, read_task
from ratchet.orchestrator.job_interface import Uses

NF4 = Uses("nf4", ("bitsandbytes",))

LOADED_MODEL = ("model", "adapter", "dtype", "quantization")
"""Value of `Job.loads` for these jobs."""


@dataclass(frozen=True)
class InferenceConfig:
    """Settings of every job that runs a model without training it."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of weights and arithmetic. `auto`: bfloat16 on GPUs and CPUs with native bfloat16 arithmetic, else float32,
    so the last digits depend on the kind of machine. The other values give the same result on all CPUs."""
    quantization: Annotated[Literal["none", "nf4"], NF4] = "none"
    """`nf4`: load the linear layers in 4 bits. This takes a quarter of the memory, is slower, and changes results
    slightly. An adapter is then not merged. It needs the extra `nf4`."""


def check_inference(job: str, config: InferenceConfig, inputs: Any, usage: Usage) -> None:
    """Check the inputs `model` and `adapter` of a job, and whether the model can be loaded in 4 bits if that is set.
    Raise InputError if the adapter is not the folder of a LoRA adapter, or was trained as something else than `usage`,
    and ModelError for an adapter whose training changed its base."""
    base = inputs.model
    if base is not None:
        check_folder(base)
    check_quantization(job, config.quantization, base)
    adapter = inputs.adapter
    if adapter is None:
        return
    if not (adapter / "adapter_config.json").is_file():
        raise InputError(
            f"{job}.adapter: {adapter} has no adapter_config.json; expected the folder of a LoRA adapter"
        )
    from ratchet.models.adapters.lora import check_base_is_kept

    check_base_is_kept(adapter)
    given = read_task(adapter)
    if base is None or given not in ADAPTED or find_config_folder(base, adapter) == adapter:
        return
    answers = usage == "reranker" and given == "CAUSAL_LM"  # with Yes or No
    if ADAPTED[given] != usage and not answers:
        raise InputError(
            f"{job}.adapter: {adapter} was trained as {ADAPTED[given]} (task_type {given}); expected one of"
            f" {usage}s; give another adapter"
        )


def check_quantization(job: str, quantization: str, model: Path | None) -> None:
    """Raise InputError for `nf4` if bitsandbytes is not installed, and for a mixture of experts, whose experts would
    stay whole. model: a whole folder; None: not made yet."""
    if quantization != "nf4":
        return
    require_extra(f"{job}.quantization: nf4 given", "nf4", "bitsandbytes")
    if model is not None:
        check_quantizable(f"{job}.quantization", model)
