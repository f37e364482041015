"""Collections of Qdrant: on a server, or in a folder (its local mode).

The payload of a point has all columns but the vector. A server keeps int8 and binary vectors beside the float32 ones,
from which it computes the final scores. The environment variable QDRANT_API_KEY has the key of a server."""

import os
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pyarrow as pa
from qdrant_client import QdrantClient, models

from ratchet.data.vector_tables import Dtype, Found
from ratchet.data.vector_tables.vectors import to_array

READ_AT_ONCE = 10_000
QUANTIZATIONS: Mapping[str, Any] = {
    "int8": models.ScalarQuantization(
        scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8)
    ),
    "binary": models.BinaryQuantization(binary=models.BinaryQuantizationConfig()),
}


class Table:
    dtypes: Sequence[Dtype] = ("float32", "float16", "int8", "binary")

    def __init__(self, place: str, name: str, options: str) -> None:
        host, _, port = place.rpartition(":")
        self.name = name
        if port.isdigit():
            key = os.environ.get("QDRANT_API_KEY")
            self.client = QdrantClient(host=host, port=int(port), api_key=key, https=bool(key))
        else:
            self.client = QdrantClient(path=place)
        self.exists = self.client.collection_exists(name)

    def read_digests(self) -> Mapping[str, str]:
        found = {}
        start = None
        while self.exists:
            points, start = self.client.scroll(
                self.name, limit=READ_AT_ONCE, offset=start, with_payload=["id", "digest"]
            )
            for point in points:
                payload = point.payload or {}
                found[payload["id"]] = payload["digest"]
            if start is None:
                break
        return found

    def write(self, rows: pa.Table, dtype: Dtype) -> None:
        vectors_ND = to_array(rows["vector"])
        if not self.exists:
            self.client.create_collection(
                self.name,
                models.VectorParams(
                    size=vectors_ND.shape[1],
                    distance=models.Distance.COSINE,
                    datatype=models.Datatype.FLOAT16 if dtype == "float16" else None,
                ),
                quantization_config=QUANTIZATIONS.get(dtype),
            )
            self.exists = True
        points = []
        for row, vector in zip(
            rows.drop_columns("vector").to_pylist(), vectors_ND.tolist(), strict=True
        ):
            points.append(models.PointStruct(id=_number(row["id"]), vector=vector, payload=row))
        self.client.upload_points(self.name, points, wait=True)

    def delete(self, ids: Sequence[str]) -> None:
        self.client.delete(self.name, [_number(name) for name in ids], wait=True)

    def find(self, query_D: np.ndarray, k: int) -> list[Found]:
        found = []
        for point in self.client.query_points(self.name, query_D.tolist(), limit=k).points:
            payload = point.payload or {}
            found.append(Found(payload["id"], payload["text"], point.score))
        return found


def _number(name: str) -> str:
    """Return the UUID of a row, since the ids of points are UUIDs or numbers."""
    return str(uuid5(NAMESPACE_URL, name))
