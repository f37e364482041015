"""The consequences of a refused teacher, and the temperature of a teacher's scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ratchet.jobs.retrieval.finetune_embedder import Config
from ratchet.jobs.training.teacher_gate import find_teacher_temperature


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_scale_of_a_teacher_does_not_matter(scale: float) -> None:
    teacher_QG = torch.tensor([[3.0, 1.0, -2.0], [5.0, 0.5, 4.0]])
    margin = float((teacher_QG[:, :1] - teacher_QG[:, 1:]).mean())
    triplets: Any = SimpleNamespace(teacher_margin=scale * margin)
    found = find_teacher_temperature(Config(distillation="kl_div"), triplets)
    expected = torch.softmax(teacher_QG * 4 / margin, dim=1)
    torch.testing.assert_close(torch.softmax(scale * teacher_QG / found, dim=1), expected)


def test_a_temperature_that_is_given_is_kept() -> None:
    triplets: Any = SimpleNamespace(teacher_margin=8.0)
    assert (
        find_teacher_temperature(Config(distillation="kl_div", teacher_temperature=3.0), triplets)
        == 3.0
    )
    assert find_teacher_temperature(Config(), SimpleNamespace()) == 1.0, "labels alone"  # type: ignore[arg-type]
