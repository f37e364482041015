"""Tables of PostgreSQL with the extension pgvector.

The columns of the data are in the column `metadata` (jsonb). The password comes from PGPASSWORD or ~/.pgpass."""

from collections.abc import Mapping, Sequence

import numpy as np
import psycopg
import pyarrow as pa
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.types.json import Jsonb

from ratchet.data.vector_tables import OWN_COLUMNS, Dtype, Found
from ratchet.data.vector_tables.vectors import to_array


class Table:
    dtypes: Sequence[Dtype] = ("float32",)

    def __init__(self, place: str, name: str, options: str) -> None:
        self.connection = psycopg.connect(f"postgresql://{place}?{options}", autocommit=True)
        self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(self.connection)
        self.name = sql.Identifier(*name.split("."))
        row = self.connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
        self.exists = row is not None and row[0] is not None

    def read_digests(self) -> Mapping[str, str]:
        if not self.exists:
            return {}
        return dict(self.connection.execute(self._fill("SELECT id, digest FROM {}")).fetchall())

    def write(self, rows: pa.Table, dtype: Dtype) -> None:
        vectors_ND = to_array(rows["vector"])
        if not self.exists:
            self.connection.execute(
                self._fill(
                    "CREATE TABLE {} (id text PRIMARY KEY, text text NOT NULL, metadata jsonb NOT NULL,"
                    " digest text NOT NULL, vector vector({dim}) NOT NULL)",
                    dim=sql.Literal(vectors_ND.shape[1]),
                )
            )
            self.exists = True
        values = []
        for row, vector in zip(rows.drop_columns("vector").to_pylist(), vectors_ND, strict=True):
            metadata = {key: value for key, value in row.items() if key not in OWN_COLUMNS}
            values.append((row["id"], row["text"], Jsonb(metadata), row["digest"], vector))
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(
                self._fill(
                    "INSERT INTO {} VALUES (%s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET text = EXCLUDED.text,"
                    " metadata = EXCLUDED.metadata, digest = EXCLUDED.digest, vector = EXCLUDED.vector"
                ),
                values,
            )

    def delete(self, ids: Sequence[str]) -> None:
        self.connection.execute(self._fill("DELETE FROM {} WHERE id = ANY(%s)"), [list(ids)])

    def find(self, query_D: np.ndarray, k: int) -> list[Found]:
        query = self._fill(
            "SELECT id, text, 1 - (vector <=> %s) FROM {} ORDER BY vector <=> %s LIMIT %s"
        )
        rows = self.connection.execute(query, [query_D, query_D, k]).fetchall()
        return [Found(*row) for row in rows]

    def _fill(self, query: str, **values: sql.Composable) -> sql.Composed:
        return sql.SQL(query).format(self.name, **values)  # type: ignore[arg-type]
