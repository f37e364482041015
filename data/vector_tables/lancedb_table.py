"""Tables of LanceDB, an embedded database in a folder."""

from collections.abc import Mapping, Sequence
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

from ratchet.data.vector_tables import Dtype, Found
from ratchet.data.vector_tables.vectors import convert_vectors, fit_rows

BINARY = pa.uint8()


class Table:
    dtypes: Sequence[Dtype] = ("float32", "float16", "binary")

    def __init__(self, place: str, name: str, options: str) -> None:
        self.name = name
        self.database = lancedb.connect(place)
        self.table = None
        if name in self.database.list_tables().tables:
            self.table = self.database.open_table(name)

    def read_digests(self) -> Mapping[str, str]:
        if self.table is None:
            return {}
        found = self.table.search().select(["id", "digest"]).limit(None).to_arrow()
        return dict(zip(found["id"].to_pylist(), found["digest"].to_pylist(), strict=True))

    def write(self, rows: pa.Table, dtype: Dtype) -> None:
        if self.table is None:
            self.table = self.database.create_table(self.name, rows)
            return
        merge = self.table.merge_insert("id").when_matched_update_all()
        fitted = fit_rows(self.name, rows, self.table.schema)
        merge.when_not_matched_insert_all().execute(fitted)

    def delete(self, ids: Sequence[str]) -> None:
        assert self.table is not None
        names = ", ".join("'" + name.replace("'", "''") + "'" for name in ids)
        self.table.delete(f"id IN ({names})")

    def find(self, query_D: np.ndarray, k: int) -> list[Found]:
        assert self.table is not None
        asked = query_D
        metric = "cosine"
        most = 1.0
        if self.table.schema.field("vector").type.value_type == BINARY:
            asked = convert_vectors(query_D[None], "binary")[0]
            metric = "hamming"
            most = len(query_D) / 2
        search: Any = self.table.search(asked, vector_column_name="vector")
        found = []
        for row in search.distance_type(metric).limit(k).to_list():
            found.append(Found(row["id"], row["text"], 1 - row["_distance"] / most))
        return found
