"""Pieces cover each row of the shards once, and their number is known before the map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.tables import write_table
from ratchet.jobs.distributed.piece_size import (
    LEAST_ROWS,
    choose_piece_rows,
    count_pieces,
    divide_input,
)
from ratchet.jobs.distributed.pieces import Piece
from ratchet.jobs.retrieval import embed
from ratchet.orchestrator.job_interface import Division
from ratchet.orchestrator.job_interface.placement import Machine
from ratchet.orchestrator.step import Source, step

EIGHT = [Machine(cpus=64, gpus=8)]


def write(folder: Path, *rows: int) -> Path:
    for number, count in enumerate(rows):
        write_table(folder / f"shard-{number:05d}.parquet", pa.table({"x": list(range(count))}))
    return folder


@given(rows=st.integers(0, 5000), size=st.one_of(st.none(), st.integers(1, 5000)))
def test_pieces_cover_each_row_once(rows: int, size: int | None) -> None:
    shard = Piece(Path("shard-00000.parquet"), 0, rows, Path("out/shard-00000.parquet"))
    pieces = shard.cut(size)
    covered = [row for piece in pieces for row in range(piece.first, piece.first + piece.rows)]
    assert covered == list(range(rows))
    assert len({piece.target for piece in pieces}) == len(pieces)
    assert size is None or all(piece.rows <= size for piece in pieces)


@pytest.mark.parametrize(
    "rows", [(), (0,), (1,), (63, 65), (4096, 1000), (4096,) * 3, (200, 0, 129)]
)
@pytest.mark.parametrize("pieces", [0, 16, 64])
def test_the_number_of_pieces_is_known_before(
    rows: tuple[int, ...], pieces: int, tmp_path: Path
) -> None:
    folder = write(tmp_path / "in", *rows)
    size = choose_piece_rows(sum(rows), pieces)
    cut = 0
    for path in sorted(folder.glob("*.parquet")):
        cut += len(Piece.whole(path, tmp_path / path.name).cut(size))
    assert count_pieces(folder, pieces) == (cut if rows else None)
    assert size is None or size >= LEAST_ROWS


def test_unreadable_shards_are_left_to_the_job(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", 300)
    (folder / "shard-00000.parquet").write_bytes(b"PAR1")
    assert count_pieces(folder, 64) is None
    assert divide_input("texts", 64)(None, None) == Division()


@pytest.mark.parametrize(
    ("rows", "asked", "workers"),
    [(64, {}, 1), (200, {}, 4), (3146, {}, 8), (200, {"workers": 8}, 4), (200, {"workers": 2}, 2)],
)
def test_a_step_asks_for_the_workers_that_have_work(
    rows: int, asked: dict[str, Any], workers: int, tmp_path: Path
) -> None:
    texts = write(tmp_path / "in", rows)
    one = step("e", embed.JOB, model=Source(tmp_path), texts=Source(texts))
    placed = one.place(EIGHT)
    assert placed.workers == 8, "not known yet"
    one = step(
        "e", embed.JOB, model=Source(tmp_path), texts=Source(texts), resources=type(placed)(**asked)
    )
    placed = one.place(EIGHT, embed.Inputs(tmp_path, texts))
    assert placed.workers == workers
    assert placed.cpus == 63 // 8
