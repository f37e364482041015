"""Mistakes in the address of a cluster. No run and no sweep is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from mistakes import Mistake, answers, check, parametrize

pytestmark = pytest.mark.slow

HEAD = "expected host:port of the head of a running Ray cluster, such as 10.0.0.1:6379"
SPACE = {"space.yaml": "finetune_embedder.epochs: choice(1, 2)\n"}

RUN = answers(
    *(
        (
            f"run quickstart --address '{given}'",
            rf"address {pattern}: no host and port; {HEAD}; correct it",
        )
        for given, pattern in (
            ("nonsense", "nonsense"),
            ("127.0.0.1", "127.0.0.1"),
            (":6379", ":6379"),
            ("127.0.0.1:", "127.0.0.1:"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:99999", "127.0.0.1:99999"),
            ("127.0.0.1:ray", "127.0.0.1:ray"),
            ("my host:6379", "my host:6379"),
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("127.0.0.1;6379", "127.0.0.1;6379"),
            ("[::1:6379", r"\[::1:6379"),
        )
    ),
    *(
        (
            f"run quickstart --address {given}",
            rf"address {given}: the address of a dashboard, .*; start .*: `ray job submit --address {given} .*`",
        )
        for given in ("http://127.0.0.1:8265", "https://head:8265")
    ),
    (
        "run quickstart --address ray://127.0.0.1:10001",
        rf"address ray://127.0.0.1:10001: an address of Ray Client.*; {HEAD}.*",
    ),
    (
        "run quickstart --address 127.0.0.1:1",
        rf"address 127.0.0.1:1: Connection refused; {HEAD}; check that it is .*",
    ),
    (
        "run quickstart --address [::1]:1",
        rf"address \[::1\]:1: .*; {HEAD}; check that it is running .*",
    ),
    (
        "run quickstart --address no.invalid:1",
        rf"address no.invalid:1: .*; {HEAD}; check that it is running .*",
    ),
)

SWEEP = [
    Mistake(
        f"sweep {given}",
        f"sweep quickstart --space space.yaml --metric map@25 --address {given}",
        answer,
        dict(SPACE),
    )
    for given, answer in (
        ("nonsense", rf"address nonsense: no host and port; {HEAD}; correct it"),
        ("http://127.0.0.1:8265", r"address http://127.0.0.1:8265: the address of a dashboard, .*"),
        ("127.0.0.1:1", r"address 127.0.0.1:1: Connection refused"),
    )
]


@pytest.fixture(autouse=True)
def in_a_process_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every command is. An integration test may have started one in this process."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@parametrize(RUN, SWEEP)
def test_a_mistake_is_answered_in_one_line_and_leaves_no_run(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)
    assert not list(tmp_path.glob("store/runs/*"))
    assert not list(tmp_path.glob("store/sweeps/*"))
    assert not list(tmp_path.glob("store/open_runs/*"))
