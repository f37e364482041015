"""The queue of a map's shards, by scenario and by property."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.jobs.distributed.shard_queue import ShardQueue
from ratchet.orchestrator.job_interface import Context, Resources


def make_queue(shards: int) -> ShardQueue:
    context = Context("step", "0" * 64, 1, Path(), Path(), Resources(1, 1.0, 0.0))
    return ShardQueue(
        context, 0, None, [(Path(f"{number}"), Path(f"out/{number}")) for number in range(shards)]
    )


def test_a_lost_worker_takes_its_shard_first() -> None:
    queue = make_queue(3)
    assert queue.take(0) == (Path("0"), Path("out/0"))
    assert queue.take(1) == (Path("1"), Path("out/1"))
    queue.put_back(0)
    assert queue.count_unfinished() == 3
    assert queue.take(0) == (Path("0"), Path("out/0"))


def test_a_shard_that_another_worker_has_is_not_put_back() -> None:
    queue = make_queue(2)
    queue.take(0)
    queue.put_back(1)
    assert queue.take(1) == (Path("1"), Path("out/1"))
    assert queue.take(1) is None
    assert queue.count_unfinished() == 1, "the first worker's"
    assert queue.take(0) is None
    assert queue.count_unfinished() == 0


@pytest.mark.slow
@given(st.integers(0, 8), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_each_shard_is_finished_once_and_held_by_one_worker(
    shards: int, moves: list[tuple[int, bool]]
) -> None:
    queue = make_queue(shards)
    held: dict[int, Path] = {}
    finished: list[Path] = []
    for worker, lost in [
        *moves,
        *((worker, False) for worker in range(4) for _ in range(shards + 1)),
    ]:
        if lost:
            held.pop(worker, None)
            queue.put_back(worker)
            continue
        if worker in held:
            finished.append(held.pop(worker))
        taken = queue.take(worker)
        if taken:
            assert taken[0] not in held.values()
            held[worker] = taken[0]
        assert queue.count_unfinished() == shards - len(finished)
    assert sorted(finished) == sorted(Path(f"{number}") for number in range(shards))
