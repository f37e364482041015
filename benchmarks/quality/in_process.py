"""Training of a job's task in this process, without Ray and DeepSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints


def make_config(config_class: Any, values: dict[str, Any], settings: Sequence[str]) -> Any:
    """Return the config of a job. settings: NAME=VALUE, which take precedence over the values."""
    from ratchet.orchestrator.job_interface.settings import convert

    types, given = get_type_hints(config_class, include_extras=True), dict(values)
    for name, _, text in (line.partition("=") for line in settings):
        given[name] = convert(text, types[name], name)
    return config_class(**given)


def make_task(task_class: type, config: Any, inputs: Any, threads: int) -> Any:
    """Return the task of a job with one worker, on CPUs."""
    from ratchet.jobs.training.task import WorkerInfo
    from ratchet.orchestrator.job_interface import Resources

    return task_class(WorkerInfo(0, 1, "cpu"), config, inputs, Resources(1, cpus=float(threads), gpus=0.0))


def train(task: Any) -> int:
    """Train as the settings of a task say. Return the number of training steps."""
    import torch

    from ratchet.jobs.training.schedule import learning_rate_at
    from ratchet.models.engine import configure_malloc, group_by_layer

    configure_malloc(task.model)
    config, number, total = task.config, 0, sum(task.steps)
    groups = group_by_layer(task.model, config.layer_decay)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)
    task.model.train()
    for epoch, steps in enumerate(task.steps):
        for step in range(steps):
            for part in task.parts(epoch, step):
                part()[0].backward()
            torch.nn.utils.clip_grad_norm_([one for group in groups for one in group["params"]], config.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(number, total, config) * group["lr_scale"]
            optimizer.step()
            optimizer.zero_grad()
            number += 1
    return total
