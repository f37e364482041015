"""Tokens of training samples and their teacher's distributions, read by row from tables that may exceed the memory."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.data.tables import read_shards
from ratchet.data.tasks.answers import TEACHER_LOGPROBS
from ratchet.errors import InputError
from ratchet.models.decoder.conversation import Tokens
from ratchet.models.losses.causal_lm_loss import TeacherLogprobs

TALK = itemgetter("system", "questions", "targets")
"""Returns the arguments of `Conversations.tokenize_samples` from a row of SAMPLES."""
TOKENS = pa.schema(
    {"id": pa.string(), "labels": pa.int32(), "ids": pa.list_(pa.int32()), "trained": pa.list_(pa.bool_())}
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


class Teacher:
    """The teacher's distributions at the labels of samples. Raises InputError for a sample without distributions."""

    def __init__(self, folder: Path, samples: TokenTable) -> None:
        table = read_shards(folder, TEACHER_LOGPROBS.names)
        self._row_N = pc.index_in(samples.id_N, value_set=table["id"])
        sizes = pc.list_value_length(table["token_ids"]).take(self._row_N)
        top_k = table["top_k"].take(self._row_N)
        right = pc.fill_null(pc.equal(sizes, pc.multiply(top_k, pa.array(samples.labels_N))), False)
        sample = pc.index(right, False).as_py()
        if sample >= 0:
            if self._row_N[sample].is_valid:
                problem = "another number of"
            else:
                problem = "no"
            raise InputError(
                f"sft.teacher: {folder} has {problem} distributions for sample {samples.id_N[sample]}; expected one for"
                " each token of its answer; run teacher_logprobs on the same samples"
            )
        self._columns = [table[name] for name in ("top_k", "token_ids", "logprobs")]

    def __getitem__(self, sample: int) -> TeacherLogprobs:
        row = self._row_N[int(sample)].as_py()
        top_k, ids, logprobs = (column[row] for column in self._columns)
        shape = (-1, top_k.as_py())
        return TeacherLogprobs(*(values.values.to_numpy().reshape(shape) for values in (ids, logprobs)))
