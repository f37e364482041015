"""Tables that the workers of a machine share, in the memory of Ray's object store."""

import socket
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import ray
from ray import cloudpickle

from ratchet.data.tables import read_shards
from ratchet.jobs.training.worker import WorkerInfo, gather_objects

LEAST_BYTES = 64 << 20
"""A smaller table is read by each worker."""


def read_shared(worker: WorkerInfo, folder: Path, columns: Sequence[str]) -> pa.Table:
    """Read all shards as one table, of which each machine holds one copy. Collective."""
    here = socket.gethostname()
    neighbours = []
    for rank, machine in gather_objects((worker.rank, here)):
        if machine == here:
            neighbours.append(rank)
    table = None
    shared = None
    if worker.rank == neighbours[0]:
        table = read_shards(folder, columns)
        if len(neighbours) > 1 and table.nbytes >= LEAST_BYTES and ray.is_initialized():
            kept = ray.put(table)
            shared = cloudpickle.dumps(kept)  # with the address of its owner, this worker
    found = dict(gather_objects((worker.rank, shared)))[neighbours[0]]
    if found is not None:
        table = ray.get(cloudpickle.loads(found))  # a view of the store's memory
    if table is None:
        table = read_shards(folder, columns)
    return table
