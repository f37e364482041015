"""Processes of one test that train together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp


def run_workers(work: Callable[..., None], arguments: tuple[Any, ...], workers: int) -> None:
    """Call work(rank, *arguments) in that many processes, and wait for all of them.

    They are forked from a server that imports torch once, so a process starts in milliseconds instead of seconds.
    """
    multiprocessing.set_forkserver_preload(["torch.distributed", "hypothesis.strategies", "pytest"])
    mp.start_processes(work, arguments, nprocs=workers, start_method="forkserver")
