"""A table that the training workers of a machine share, on a real Ray and with real process groups."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nodes import free_port

from ratchet.data.tables import read_shards, write_table
from ratchet.jobs.training import shared_table
from ratchet.jobs.training.worker import WorkerInfo


class Reader:
    """A training worker. A worker `alone` has another host name."""

    def read(self, folder: Path, rank: int, port: int, alone: bool) -> tuple[pa.Table, float]:
        """Return the table, and the fraction of its bytes that lie in memory of Ray's object store."""
        import socket

        import torch.distributed as dist

        if alone:
            socket.gethostname = lambda: "another"  # type: ignore[assignment]
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3
        )
        worker = WorkerInfo(rank, 3, "cpu")
        table = shared_table.read_shared(worker, folder, ["id", "text"])
        maps = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "plasma" in line:
                maps.append([int(number, 16) for number in line.split()[0].split("-")])
        inside = total = 0
        for column in table.columns:
            for chunk in column.chunks:
                for buffer in filter(None, chunk.buffers()):
                    total += buffer.size
                    if any(first <= buffer.address < last for first, last in maps):
                        inside += buffer.size
        return table.slice(0, 10), inside / total


@pytest.mark.parametrize("rows", [200, 200_000])
def test_each_machine_holds_one_copy(local_ray: None, tmp_path: Path, rows: int) -> None:
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for shard in range(2):
        names = [f"{shard}-{row}" for row in range(rows // 2)]
        table = pa.table({"id": names, "text": ["words " * 60] * len(names), "more": names})
        write_table(tmp_path / f"shard-{shard:05d}.parquet", table)
    expected = read_shards(tmp_path, ["id", "text"])
    is_large = expected.nbytes >= shared_table.LEAST_BYTES
    assert is_large == (rows > 1000)
    make: Any = ray.remote(num_cpus=0)(Reader)
    port = free_port()
    readers = [make.remote() for _ in range(3)]
    running = []
    for rank, reader in enumerate(readers):
        running.append(reader.read.remote(tmp_path, rank, port, rank == 1))
    found = ray.get(running)
    for table, _ in found:
        assert table.equals(expected.slice(0, 10))
    # The second worker is alone on its machine. Of the others, the first reads, and both use the shared copy.
    assert [share for _, share in found] == [float(is_large), 0.0, float(is_large)]
