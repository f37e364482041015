"""The embed job with MiniLM's real weights, against sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ratchet.data.tables import CORPUS, open_mapped, read_shards, write_shards
from ratchet.data.vectors import read_blocks
from ratchet.errors import InputError, ModelError
from ratchet.jobs.retrieval import embed
from ratchet.jobs.retrieval.embed import Config, Inputs
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.search.top_k import top_k
from ratchet.orchestrator.job_interface import Context
from ratchet.orchestrator.job_interface.settings import validate
from tests.support.clusters.step_process import work_here

MakeContext = Callable[..., Context]

TEXTS = [
    "When adding fractions, adds the numerators and denominators",
    "Thinks 0.15 is larger than 0.6",
    "",
    "Believes that the square root of a number is half of it. " * 40,
    "Confuses the mean with the median",
    "Ünïcödé 数学 ½ \\( \\frac{1}{2} \\)",
    "x",
]


@pytest.fixture
def context(local_ray: None, context: MakeContext) -> MakeContext:
    return work_here(context)


@pytest.fixture(scope="module")
def model() -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        return resolve(MINILM)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
    write_shards(tmp_path / "texts", rows, CORPUS, 3)
    return tmp_path / "texts"


def vectors(folder: Path) -> np.ndarray:
    table = open_mapped(folder)
    return np.stack([np.array(row, np.float32) for row in table["embedding"].to_pylist()])


def test_vectors_are_those_of_sentence_transformers(
    model: Path, texts: Path, context: MakeContext
) -> None:
    from sentence_transformers import SentenceTransformer

    ctx, config = context(), Config(role="passage", dtype="float32")
    result = embed.run(ctx, config, Inputs(model, texts))
    expected = SentenceTransformer(str(model), device="cpu").encode(
        TEXTS, normalize_embeddings=True
    )
    assert np.abs(vectors(ctx.out) - expected).max() < 2e-6
    assert open_mapped(ctx.out)["id"].to_pylist() == [f"d{number}" for number in range(len(TEXTS))]
    assert sorted(path.stem for path in ctx.out.iterdir()) == sorted(
        path.stem for path in texts.iterdir()
    )
    frame = pd.read_feather(ctx.out / "shard-00000.arrow")
    assert np.array_equal(np.stack(frame["embedding"]), vectors(ctx.out)[: len(frame)])
    assert open_mapped(ctx.out).field("embedding").type == pa.list_(pa.float32(), 384)
    tokenizer = SentenceTransformer(str(model), device="cpu").tokenizer
    lengths = [len(tokenizer(text, truncation=True, max_length=256)["input_ids"]) for text in TEXTS]
    assert dict(result.metrics) == {
        "rows": len(TEXTS),
        "dim": 384,
        "tokens": sum(lengths),
        "dtype": "float32",
    }


@pytest.mark.soak
def test_float16_vectors(model: Path, texts: Path, context: MakeContext) -> None:
    runs = context(name="whole"), context(name="half")
    for ctx, storage in zip(runs, ("float32", "float16"), strict=True):
        config = Config(dtype="float32", storage_dtype=storage, npy=True)  # type: ignore[arg-type]
        embed.run(ctx, config, Inputs(model, texts))
    whole, half = (vectors(ctx.out) for ctx in runs)
    assert open_mapped(runs[1].out).field("embedding").type == pa.list_(pa.float16(), 384)
    assert (half == whole.astype(np.float16)).all()
    ids = read_shards(texts)["id"].combine_chunks()
    blocks = [block for _, block in read_blocks(runs[1].out, ids)]
    assert {block.dtype for block in blocks} == {np.dtype(np.float32)}
    assert (np.concatenate(blocks) == half).all()
    assert (np.load(runs[1].out / "embeddings.npy") == half).all()
    orders = [top_k(own, [(0, own)], len(TEXTS))[1] for own in (whole, half)]
    assert (orders[0] == orders[1]).all()


def test_the_same_bytes_twice_and_a_length_limit(
    model: Path, texts: Path, context: MakeContext
) -> None:
    runs = [context(name=name) for name in ("a", "b", "short")]
    for ctx, limit in zip(runs, (None, None, 8), strict=True):
        embed.run(ctx, Config(max_length=limit), Inputs(model, texts))
    first, second = (
        {path.name: path.read_bytes() for path in ctx.out.iterdir()} for ctx in runs[:2]
    )
    assert first == second
    same = (np.abs(vectors(runs[0].out) - vectors(runs[2].out)).max(axis=1) < 0.02).tolist()
    assert same[3] is False, "the long text was cut"
    assert same[6] is True, "the short one was not"


def test_a_shard_without_rows_gives_one_without_rows(
    model: Path, tmp_path: Path, context: MakeContext
) -> None:
    write_shards(tmp_path / "none", [], CORPUS, 3)
    ctx = context()
    result = embed.run(ctx, Config(), Inputs(model, tmp_path / "none"))
    assert result.metrics["rows"] == 0
    assert open_mapped(ctx.out).num_rows == 0


def test_what_cannot_work_is_refused_before_anything_starts(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        embed.check(Config(), Inputs(tmp_path, texts), {})
    with pytest.raises(InputError, match=r"max_length: 2 given"):
        validate(Config, {"max_length": 2}, "embed")
    with pytest.raises(InputError, match=r"no adapter_config\.json"):
        embed.check(Config(), Inputs(model, texts, adapter=tmp_path), {})
    embed.check(Config(), Inputs(model, texts), {})


def test_a_table_without_texts_is_named(model: Path, tmp_path: Path, context: MakeContext) -> None:
    write_shards(tmp_path / "ids", [{"id": "a"}], pa.schema([("id", pa.string())]), 3)
    with pytest.raises(InputError, match=r"shard-00000\.parquet: has no column text"):
        embed.run(context(), Config(), Inputs(model, tmp_path / "ids"))


def test_vectors_are_written_as_one_array_for_other_tools(
    model: Path, texts: Path, context: MakeContext
) -> None:
    made = context()
    embed.run(made, Config(npy=True, dtype="float32"), Inputs(model, texts))
    array = np.load(made.out / "embeddings.npy")
    assert array.dtype == np.float32
    assert np.array_equal(array, vectors(made.out))
    assert (made.out / "ids.txt").read_text().splitlines() == [
        f"d{number}" for number in range(len(TEXTS))
    ]
