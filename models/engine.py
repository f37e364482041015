"""DeepSpeed's engine for training adapters, on CPUs and GPUs alike, and what a training process sets up first."""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def start(
    model: Any,
    *,
    learning_rate: float,
    weight_decay: float,
    gradient_clipping: float,
    zero_stage: int,
    device: str,
) -> Any:
    """The engine over AdamW for the parameters that require a gradient, all of one dtype: float32, or bfloat16.

    Master weights and moments are float32 either way. gradient_clipping: largest norm, 0 for none. zero_stage 0 to 3;
    from 3 on, workers must run equally many forward passes (models.lockstep). Rates are set by the caller, step by
    step, in `engine.optimizer.param_groups`. torch.distributed must be initialised, with LOCAL_RANK in the environment.
    """
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # read when DeepSpeed is imported
    import deepspeed

    # On CPUs DeepSpeed compiles a collective of its own into the user's cache; a process that is killed then leaves
    # a lock there, for which every later one waits without end. gloo needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Without torch's Adam DeepSpeed compiles its own.
    adam = {"lr": learning_rate, "weight_decay": weight_decay, "torch_adam": True, "adam_w_mode": True}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=trained,
        config={
            # Not used but wanted: who calls the engine cuts the batches.
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "optimizer": {"type": "AdamW", "params": adam},
            "bf16": {"enabled": trained[0].dtype == torch.bfloat16},
            "zero_optimization": {"stage": zero_stage},
            # DeepSpeed 0.19 clips at 1.0 when nothing is said.
            "gradient_clipping": gradient_clipping,
            "steps_per_print": 1_000_000_000,
        },
    )
    return engine


@contextmanager
def whole_weights(model: Any) -> Iterator[None]:
    """What is trained, whole on every worker, wherever ZeRO-3 has cut it up. Collective."""
    import deepspeed

    cut = [weight for weight in model.parameters() if weight.requires_grad and hasattr(weight, "ds_id")]
    with deepspeed.zero.GatheredParameters(cut, enabled=bool(cut)):
        yield


def keep_memory() -> None:
    """Tells glibc to keep what is freed: a step's large temporaries would be given back and faulted in again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**30)
    mallopt(top_pad, 64 * 2**20)


def quiet() -> None:
    """Libraries' chatter that nobody at the screen can act on."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    for name in ("DeepSpeed", "deepspeed", "transformers", "peft", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
