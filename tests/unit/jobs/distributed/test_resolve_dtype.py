"""`dtype=auto`: one dtype per step, kept for later attempts, and refused by machines that lack it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.errors import InputError
from ratchet.jobs.distributed import resolve_dtype as module
from ratchet.jobs.distributed.resolve_dtype import check_dtype, resolve_dtype
from ratchet.jobs.retrieval.embed import Config
from ratchet.orchestrator.job_interface import Context, Resources

AUTO = Config(role="query", dtype="auto")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("embed", "a" * 64, 1, tmp_path, tmp_path, Resources(1, 1.0, 0.0))


def native(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(module, "_is_bfloat16_native", lambda resources: answer)
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda device: answer)


@pytest.mark.parametrize("chosen", ["bfloat16", "float32"])
def test_auto_is_resolved_once_whatever_machine_continues(
    context: Context, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    native(monkeypatch, chosen == "bfloat16")
    assert resolve_dtype(context, AUTO) == replace(AUTO, dtype=chosen)
    native(monkeypatch, chosen != "bfloat16")
    assert resolve_dtype(replace(context, attempt=2), AUTO) == replace(AUTO, dtype=chosen)
    assert [path.name for path in context.work.iterdir()] == ["dtype"]


def test_a_machine_without_the_dtype_of_its_step_is_refused(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    native(monkeypatch, True)
    resolve_dtype(context, AUTO)
    check_dtype(context)
    native(monkeypatch, False)
    with pytest.raises(
        InputError, match=r"embed, machine .*: its cpu does not multiply bfloat16 natively"
    ):
        check_dtype(context)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_that_is_given_is_used_on_every_machine(
    context: Context, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    native(monkeypatch, False)
    given = replace(AUTO, dtype=dtype)
    assert resolve_dtype(context, given) is given
    check_dtype(context)
    assert not list(context.work.iterdir())
