"""Training of a job's training task in this process, without Ray and DeepSpeed, and training of a linear map of frozen
vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import numpy as np

LINEAR: dict[str, Any] = {"epochs": 12, "learning_rate": 2e-3}
"""Settings of `train_linear`, with which MiniLM's map gains most on Eedi."""


def make_config(config_class: Any, values: dict[str, Any], settings: Sequence[str]) -> Any:
    """Return the config of a job. settings: NAME=VALUE, which take precedence over the values."""
    from ratchet.orchestrator.job_interface.settings import convert

    types, given = get_type_hints(config_class, include_extras=True), dict(values)
    for name, _, text in (line.partition("=") for line in settings):
        given[name] = convert(text, types[name], name)
    return config_class(**given)


def make_task(task_class: type, config: Any, inputs: Any, threads: int) -> Any:
    """Return the task of a job with one worker."""
    from ratchet.jobs.training.worker import WorkerInfo
    from ratchet.orchestrator.job_interface import Resources

    device = find_device()
    gpus = float(device != "cpu")
    return task_class(
        WorkerInfo(0, 1, device), config, inputs, Resources(1, cpus=float(threads), gpus=gpus)
    )


def find_device() -> str:
    """Return "cuda" where torch sees a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def train(task: Any) -> int:
    """Train as the settings of a task say. Return the number of training steps."""
    import torch

    from ratchet.jobs.training.schedule import learning_rate_at
    from ratchet.models.engine import configure_malloc, group_weights

    configure_malloc(task.model)
    config, number, total = task.config, 0, sum(task.steps)
    groups = group_weights(task.model, weight_decay=config.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate)
    task.model.train()
    for epoch, steps in enumerate(task.steps):
        for step in range(steps):
            for microbatch in task.batch(epoch, step).microbatches:
                task.loss(microbatch).backward()
            torch.nn.utils.clip_grad_norm_(
                [one for group in groups for one in group["params"]], config.max_grad_norm
            )
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(number, total, config)
            optimizer.step()
            optimizer.zero_grad()
            number += 1
    return total


def train_linear(
    config: Any,
    triplets: Any,
    query_QD: np.ndarray,
    corpus_ND: np.ndarray,
    *,
    temperature_rate: float = 0.0,
) -> list[np.ndarray]:
    """Train a linear map of frozen vectors as an embedder is trained: `normalize(x + x W)`, of queries and documents.
    Return W, float32 [D, D], after each epoch; only 0 for no epochs.

    config: that of `finetune_embedder`. Settings of the model, guides and gradient clipping are not used.
    temperature_rate: of learning the logarithm of the temperature, relative to the rate of W; 0: it stays."""
    import torch

    from ratchet.data.triplets import pad_rows
    from ratchet.jobs.training.teacher_gate import find_teacher_temperature
    from ratchet.models.losses.distillation import distillation_loss

    query, corpus = torch.from_numpy(query_QD), torch.from_numpy(corpus_ND)
    map_DD = torch.zeros((query.shape[1],) * 2, requires_grad=True)
    log_scale = torch.tensor(-math.log(config.temperature), requires_grad=True)
    triplets.seed, triplets.batch_size = config.seed, config.batch_size
    triplets.num_negatives = config.num_negatives
    batches = triplets.num_batches
    total, teacher_temperature = config.epochs * batches, find_teacher_temperature(config, triplets)
    groups: list[dict[str, Any]] = [
        {"params": [map_DD], "weight_decay": config.weight_decay, "share": 1.0}
    ]
    groups.append({"params": [log_scale], "weight_decay": 0.0, "share": temperature_rate})
    optimizer, kept = torch.optim.AdamW(groups), list[np.ndarray]()
    for number in range(total):
        batch = triplets.batch(*divmod(number, batches))
        query_qD, passage_PD = (
            rows + rows @ map_DD for rows in (query[batch.query_Q], corpus[batch.passage_P])
        )
        dims = (len(map_DD), *config.matryoshka_dims)
        losses = [
            distillation_loss(
                config.distillation,
                cosine(query_qD[:, :dim], passage_PD[:, :dim]) * log_scale.exp(),
                torch.from_numpy(pad_rows(batch.own_Q, -1)),
                None
                if batch.teacher_Q is None
                else torch.from_numpy(pad_rows(batch.teacher_Q, 0.0)),
                teacher_temperature=teacher_temperature,
                weight=config.distillation_weight,
            )
            for dim in dims
        ]
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * (1 - number / total) * group["share"]
        optimizer.zero_grad()
        (sum(losses[1:], losses[0]) / len(losses) / len(batch.query_Q)).backward()
        optimizer.step()
        if number % batches == batches - 1:
            kept.append(map_DD.detach().numpy().copy())
    return kept or [map_DD.detach().numpy()]


def cosine(query_QD: Any, passage_PD: Any) -> Any:
    from torch.nn.functional import normalize

    return normalize(query_QD, dim=-1) @ normalize(passage_PD, dim=-1).T
