"""Samples as token ids with labels."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.data.tables import list_shards
from ratchet.data.tasks.task import SAMPLES
from ratchet.jobs.answers.chat_options import TALK
from ratchet.models.decoder.conversation import Conversations, Tokens

TOKENS = pa.schema(
    {
        "id": pa.string(),
        "labels": pa.int32(),
        "ids": pa.list_(pa.int32()),
        "trained": pa.list_(pa.bool_()),
    }
)
"""Schema of tokenized samples: the id, and the fields of `Tokens`."""


class TokenTable:
    """The tokens of N samples. Besides the table it holds 16 bytes per sample in memory."""

    def __init__(self, table: pa.Table) -> None:
        self.id_N: pa.ChunkedArray = table["id"]
        self.labels_N: np.ndarray = table["labels"].to_numpy().astype(np.int64)
        """Number of labels of each sample, int64 [N]."""
        self.size_N: np.ndarray = pc.list_value_length(table["ids"]).to_numpy().astype(np.int64)
        """Number of tokens of each sample, int64 [N]."""
        self._columns = table["ids"], table["trained"]

    def __len__(self) -> int:
        return len(self.size_N)

    def __getitem__(self, row: int) -> Tokens:
        return Tokens(*(column[int(row)].as_py() for column in self._columns))


def tokenize(folder: Path, conversations: Conversations, limit: int) -> tuple[TokenTable, int]:
    """Return the tokens of the samples in a folder, and the number of samples of more than `limit` tokens, which are
    left out."""
    tables = [TOKENS.empty_table()]
    too_long = 0
    for path in list_shards(folder):
        rows = pq.read_table(path, columns=SAMPLES.names).to_pylist()
        fitting = []
        tokenized = conversations.tokenize_samples(map(TALK, rows), exact=True)
        for row, tokens in zip(rows, tokenized, strict=True):
            if len(tokens.ids) <= limit:
                fitting.append({"id": row["id"], "labels": tokens.labels, **vars(tokens)})
        too_long += len(rows) - len(fitting)
        tables.append(pa.Table.from_pylist(fitting, TOKENS))
    return TokenTable(pa.concat_tables(tables)), too_long
