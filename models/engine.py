"""The DeepSpeed engine for training adapters on CPUs and GPUs, and the setup of a training process.

DeepSpeed is imported inside the functions: it reads DS_ACCELERATOR when it is imported.
"""

import ctypes
import gc
import logging
import math
import os
import re
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from ratchet.extras import hide_package

NOT_DECAYED = re.compile(r"bias|norm\b", re.IGNORECASE)
"""Pattern in the names of biases and of the weights of norms, which can be matrices: biases of experts, norms of
heads."""


MERGED = "merged"
"""Name of a merged checkpoint in its folder."""


def start_engine(
    model: Any,
    *,
    learning_rate: float,
    weight_decay: float,
    max_grad_norm: float,
    zero_stage: int,
    device: str,
    offload: str = "none",
) -> Any:
    """Start DeepSpeed with AdamW over the parameters that require a gradient, all float32 or all bfloat16.

    Master weights and moments are float32 in both cases. max_grad_norm: 0 turns clipping off. zero_stage: 0 to 3;
    with 3, workers must run equally many forward passes (`ratchet.models.zero3_sync`). The caller sets
    the learning rate in `engine.optimizer.param_groups`.
    torch.distributed must be initialised, and LOCAL_RANK set with several workers. offload: what is kept in the memory
    of the host, see `FinetuneConfig.offload`.
    """
    deepspeed = _import_deepspeed(device)
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_half = trained[0].dtype == torch.bfloat16
    # Without torch's Adam DeepSpeed compiles its own.
    adam = {"lr": learning_rate, "torch_adam": True, "adam_w_mode": True}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=group_weights(model, weight_decay=weight_decay),
        config={
            # Required but unused: the caller splits the batches.
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "optimizer": {"type": "AdamW", "params": adam},
            "bf16": {"enabled": is_half},
            # In bfloat16 a quarter of the sum of 4,096 micro-batches is lost.
            "data_types": {"grad_accum_dtype": "fp32"},
            # Stage 0 cannot add bfloat16 gradients up in float32. Stage 1 does the same with sharded moments.
            "zero_optimization": {
                "stage": max(zero_stage, int(is_half)),
                # The default takes 2 GB of float32, however few weights are trained.
                "reduce_bucket_size": min(
                    500_000_000, sum(getattr(one, "ds_numel", one.numel()) for one in trained)
                ),
                **_configure_offload(offload),
            },
            # DeepSpeed compiles an Adam of its own for moments in the memory of the host.
            "zero_force_ds_cpu_optimizer": False,
            # DeepSpeed 0.19 clips at 1.0 when nothing is said.
            "gradient_clipping": max_grad_norm,
            "steps_per_print": 1_000_000_000,
        },
    )
    return engine


def group_weights(model: Any, *, weight_decay: float) -> list[dict[str, Any]]:
    """Return the weights that require a gradient as groups of an optimizer: decayed ones, and biases and norms."""
    decayed = []
    others = []
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        if _is_decayed(name, weight):
            decayed.append(weight)
        else:
            others.append(weight)
    groups = []
    for weights, decay in ((decayed, weight_decay), (others, 0.0)):
        if weights:
            groups.append({"params": weights, "weight_decay": decay})
    return groups


def _is_decayed(name: str, weight: torch.Tensor) -> bool:
    """Whether weight decay applies to a weight: neither for vectors nor, in any shape, for biases and norms."""
    shape = getattr(weight, "ds_shape", weight.shape)  # a partitioned weight is empty
    return len(shape) > 1 and not NOT_DECAYED.search(name)


def can_load_merged(model: Any, workers: int) -> bool:
    """Whether every worker gets weights of each group, padding aside. DeepSpeed 0.19 cannot load a merged checkpoint
    otherwise. The partitions are those of its `flatten_dense_tensors_aligned`."""
    for group in group_weights(model, weight_decay=1.0):
        total = sum(weight.numel() for weight in group["params"])
        part = 2 * math.ceil(total / (2 * workers))
        if part * (workers - 1) >= total:
            return False
    return True


def merge_shards(checkpoint: Path, folder: Path) -> None:
    """Write the checkpoint of sharded optimizer states (ZeRO 1 or 2) as one that `load_merged` gives to any number of
    workers: DeepSpeed's universal checkpoint, in `folder`, which must not exist."""
    from deepspeed.checkpoint import ds_to_universal

    options = {
        "input_folder": str(checkpoint),
        "output_folder": str(folder / MERGED),
        "num_extract_workers": 1,
        "num_merge_workers": 1,
        "keep_temp_folder": False,
        "strict": False,
        "inject_missing_state": True,
    }
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        ds_to_universal.main(Namespace(**options))


def load_merged(engine: Any, folder: Path) -> None:
    """Load what `merge_shards` wrote into an engine. Collective."""
    engine._config.load_universal_checkpoint = True  # DeepSpeed reads it from its settings only
    try:
        engine.load_checkpoint(str(folder), tag=MERGED, load_module_strict=False)
    finally:
        engine._config.load_universal_checkpoint = False


def start_part(engine: Any) -> None:
    """Prepare the engine for the forward and backward pass of one part of a training step, as the engine's own
    `forward` does. Otherwise the gradients of several parts do not add up."""
    if hasattr(
        engine.optimizer, "clear_backward_seen_flag"
    ):  # not with stage 0, where PyTorch adds them up
        engine.optimizer.clear_backward_seen_flag()
        engine.optimizer.backward_prologue()


@contextmanager
def load_partitioned(
    dtype: str, device: str, *, zero_stage: int, offload: str = "none"
) -> Iterator[None]:
    """Context manager in which transformers loads a model layer by layer, with its weights partitioned over workers, so
    that no worker ever holds all of them. Does nothing below ZeRO stage 3. Collective, like `start_engine`."""
    if zero_stage < 3:
        yield
        return
    _import_deepspeed(device)
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": dtype == "bfloat16"},
        "zero_optimization": {"stage": 3, **_configure_offload(offload)},
    }
    active = HfDeepSpeedConfig(config)  # transformers holds a weak reference
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del active


def is_partitioned(weight: torch.Tensor) -> bool:
    """Whether a weight is partitioned by ZeRO-3: it is empty until it is gathered."""
    return hasattr(weight, "ds_id")


@contextmanager
def gather_weights(weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Context manager in which these weights are whole on every worker. Collective if one is partitioned."""
    cut = [weight for weight in weights if is_partitioned(weight)]
    if not cut:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(cut):
        yield


@contextmanager
def gather_on_first_worker(weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Context manager in which these weights are whole on the first worker, in the memory of the host. They are
    gathered one by one. Collective if one is partitioned."""
    kept = []
    for weight in filter(is_partitioned, weights):
        with gather_weights([weight]):
            if torch.distributed.get_rank() == 0:
                copy = weight.detach().to("cpu", copy=True)
            else:
                copy = None
        if copy is not None:
            kept.append((weight, weight.data))
            weight.data = copy
    try:
        yield
    finally:
        for weight, own in kept:
            weight.data = own


def _configure_offload(offload: str) -> dict[str, Any]:
    """Return DeepSpeed's settings for `FinetuneConfig.offload`."""
    names = {
        "none": (),
        "optimizer": ("offload_optimizer",),
        "parameters": ("offload_optimizer", "offload_param"),
    }
    found = {}
    for name in names[offload]:
        found[name] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return found


def _import_deepspeed(device: str) -> Any:
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # read when DeepSpeed is imported
    with hide_package("mlflow"):  # a second of imports for DeepSpeed's search for settings
        import deepspeed

    # On CPUs DeepSpeed compiles its own collective into the user's cache. A process that is killed meanwhile leaves a
    # lock there on which every later process blocks. gloo needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


MALLOC = (-1, -2, -3)
"""Numbers of glibc's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD."""
KEEP_FREED_BYTES = 5e8
"""Largest size of the weights of a small model, in bytes; see `configure_malloc`."""


def configure_malloc(model: Any) -> None:
    """Tell glibc what to do with the freed memory of large temporaries in training on CPUs.

    It is kept for small models, so that it is not faulted in again at each training step. It is returned at once for
    large models: kept memory is in pieces that fit nothing else, which doubles the memory of the process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    trim_threshold, top_pad, mmap_threshold = MALLOC
    if sum(weight.nbytes for weight in model.parameters()) > KEEP_FREED_BYTES:
        mallopt(mmap_threshold, 2**20)
        return
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**30)
    mallopt(top_pad, 64 * 2**20)


def release_memory() -> None:
    """Return the memory of a training that has ended, since its process may go on with other work."""
    gc.collect()  # DeepSpeed's engine and the model refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for number, value in zip(
            MALLOC, (2**26, 2**17, 2**25), strict=True
        ):  # the values that glibc reaches by itself
            libc.mallopt(number, value)
        libc.malloc_trim(0)


def silence_libraries() -> None:
    """Hide log lines and warnings of libraries."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    for name in ("DeepSpeed", "deepspeed", "transformers", "peft", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
