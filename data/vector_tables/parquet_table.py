"""A folder of Parquet files, of which an update writes those anew that have rows which it replaces or removes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.data.tables import write_table
from ratchet.data.vector_tables import Dtype, Found
from ratchet.data.vector_tables.vectors import convert_vectors, fit_rows, restore_vectors, to_array

STORED: Mapping[pa.DataType, Dtype] = {
    pa.float32(): "float32",
    pa.float16(): "float16",
    pa.int8(): "int8",
    pa.uint8(): "binary",
}


class Table:
    dtypes: Sequence[Dtype] = ("float32", "float16", "int8", "binary")

    def __init__(self, place: str, name: str, options: str) -> None:
        self.folder = Path(place)
        self.digests: dict[str, str] = {}
        for path in self._list_files():
            self._add_digests(pq.read_table(path, columns=["id", "digest"]))

    def read_digests(self) -> Mapping[str, str]:
        return self.digests

    def write(self, rows: pa.Table, dtype: Dtype) -> None:
        for path in self._list_files()[:1]:
            rows = fit_rows(str(self.folder), rows, pq.read_schema(path))
        replaced = [name for name in rows["id"].to_pylist() if name in self.digests]
        if replaced:
            self.delete(replaced)
        write_table(self.folder / f"{uuid4().hex}.parquet", rows)
        self._add_digests(rows)

    def delete(self, ids: Sequence[str]) -> None:
        for path in self._list_files():
            rows = pq.read_table(path)
            left = rows.filter(pc.invert(pc.is_in(rows["id"], pa.array(ids, pa.string()))))
            if len(left) == len(rows):
                continue
            if len(left):
                write_table(path, left)
            else:
                path.unlink()

    def find(self, query_D: np.ndarray, k: int) -> list[Found]:
        found = []
        for path in self._list_files():
            rows = pq.read_table(path, columns=["id", "text", "vector"])
            dtype = STORED[rows.schema.field("vector").type.value_type]
            vectors_ND = restore_vectors(to_array(rows["vector"]), dtype)
            asked = restore_vectors(convert_vectors(query_D[None], dtype), dtype)[0]
            scores_N = vectors_ND @ asked
            for place in np.argsort(-scores_N, kind="stable")[:k].tolist():
                row = rows.slice(place, 1).to_pylist()[0]
                found.append(Found(row["id"], row["text"], float(scores_N[place])))
        return sorted(found, key=lambda row: -row.score)[:k]

    def _add_digests(self, rows: pa.Table) -> None:
        ids = rows["id"].to_pylist()
        self.digests.update(zip(ids, rows["digest"].to_pylist(), strict=True))

    def _list_files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))
