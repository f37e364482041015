"""Models that the workers of one process share: `ratchet.models.loading.open_model` loads each of them once."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_models: ContextVar[dict[Any, Any] | None] = ContextVar("models", default=None)


def current() -> dict[Any, Any] | None:
    """Return the models of `share`, by what they were loaded from. None: outside of it."""
    return _models.get()


@contextmanager
def share(models: dict[Any, Any]) -> Iterator[None]:
    """Context manager in which models for inference are taken from `models`, and added to it when they are loaded."""
    before = _models.set(models)
    try:
        yield
    finally:
        _models.reset(before)
