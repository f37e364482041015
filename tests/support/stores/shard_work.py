"""A worker of a map, called for one whole shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratchet.jobs.distributed.pieces import Piece


def process_shard(
    worker: Callable[..., Mapping[str, int]],
    source: Path,
    target: Path,
    report: Callable[..., Any] = lambda *_: None,
) -> Mapping[str, int]:
    return worker(Piece.whole(source, target), target, report)
