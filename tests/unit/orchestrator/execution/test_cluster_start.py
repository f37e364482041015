"""Ray is started again if it does not start within its 30 seconds, as on a busy machine."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from ratchet.orchestrator.execution.cluster import Cluster

LATE = "The current node timed out during startup. This could happen because some of the raylet failed to startup."


@pytest.mark.parametrize(
    ("failures", "calls", "raised"),
    [([LATE], 2, None), ([LATE] * 3, 3, "timed out"), (["no space left"], 1, "space")],
)
def test_ray_that_starts_late_is_started_again(
    failures: list[str], calls: int, raised: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        made.append(options)
        if len(made) <= len(failures):
            raise Exception(failures[len(made) - 1])

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if raised is None:
        Cluster()._init_ray(num_cpus=1)
    else:
        with pytest.raises(Exception, match=raised):
            Cluster()._init_ray(num_cpus=1)
    assert made == [{"address": "local", "num_cpus": 1}] * calls
