"""Tables of vectors: each database does what a dictionary with a search by brute force does."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.vector_tables import PACKAGES, Dtype, find_address, open_table
from ratchet.data.vector_tables.vectors import convert_vectors, restore_vectors, to_lists
from ratchet.errors import DataError, InputError

DIM = 32
ROWS = 60


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database of a PostgreSQL that this test starts."""
    pgserver = pytest.importorskip("pgserver")
    with pgserver.get_server(tmp_path_factory.mktemp("postgres")) as started:
        yield started.get_uri().removeprefix("postgresql://")


@pytest.fixture(params=sorted(PACKAGES))
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "pgvector":
        place, _, options = request.getfixturevalue("server").partition("?")
        return f"pgvector://{place}/own_{tmp_path.name.lower().replace('-', '_')}?{options}"
    name = "" if request.param == "parquet" else "/table"
    return f"{request.param}://{tmp_path}/database{name}"


def make_vectors(seed: int, rows: int = ROWS) -> np.ndarray:
    vectors_ND = np.random.default_rng(seed).normal(size=(rows, DIM)).astype(np.float32)
    return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


def make_rows(vectors_ND: np.ndarray, first: int = 0, digest: str = "old") -> pa.Table:
    numbers = range(first, first + len(vectors_ND))
    return pa.table(
        {
            "id": [f"it's {number}" for number in numbers],
            "text": [f"text {number}" for number in numbers],
            "digest": [f"{digest} {number}" for number in numbers],
            "price": [number / 2 for number in numbers],
            "vector": to_lists(vectors_ND),
        }
    )


def find_by_brute_force(known: dict[str, np.ndarray], query_D: np.ndarray) -> list[str]:
    return sorted(known, key=lambda name: -float(known[name] @ query_D))[:5]


def test_rows_are_added_replaced_removed_and_found(address: str) -> None:
    table = open_table("here", address)
    assert not table.read_digests()
    old_ND, new_ND, query_D = make_vectors(0), make_vectors(1, 20), make_vectors(2, 1)[0]
    table.write(make_rows(old_ND), "float32")
    table.write(make_rows(new_ND, 50, "new"), "float32")
    gone = [f"it's {number}" for number in range(5)]
    table.delete(gone)
    known = {f"it's {number}": vector for number, vector in enumerate(old_ND)}
    known |= {f"it's {number}": vector for number, vector in enumerate(new_ND, 50)}
    for name in gone:
        del known[name]
    if "client" in vars(table):  # a folder of Qdrant is open once
        table.client.close()  # type: ignore[attr-defined]
    table = open_table("here", address)
    assert dict(table.read_digests()) == {
        name: f"{'new' if int(name[5:]) >= 50 else 'old'} {name[5:]}" for name in known
    }
    found = table.find(query_D, 5)
    assert [row.id for row in found] == find_by_brute_force(known, query_D)
    for row in found:
        assert row.score == pytest.approx(float(known[row.id] @ query_D), abs=1e-5)
        assert row.text == f"text {row.id[5:]}"


@pytest.mark.parametrize("dtype", ["float16", "int8", "binary"])
def test_smaller_vectors_are_found_as_their_restored_ones(address: str, dtype: Dtype) -> None:
    table = open_table("here", address)
    if dtype not in table.dtypes:
        pytest.skip("the job refuses it")
    vectors_ND, query_D = make_vectors(0), make_vectors(1, 1)[0]
    stored = vectors_ND
    if not address.startswith("qdrant"):
        stored = convert_vectors(vectors_ND, dtype)
    table.write(make_rows(stored), dtype)
    smaller_ND = restore_vectors(convert_vectors(vectors_ND, dtype), dtype)
    asked_D = query_D
    if address.startswith("qdrant"):
        smaller_ND = vectors_ND  # from which final scores are computed
    elif dtype == "binary" or address.startswith("parquet"):
        asked_D = restore_vectors(convert_vectors(query_D[None], dtype), dtype)[0]
    scores_N = smaller_ND @ asked_D
    found = table.find(query_D, 5)
    best = np.sort(scores_N)[::-1][:5]
    np.testing.assert_allclose([row.score for row in found], best, atol=2e-3)
    for row in found:
        assert row.score == pytest.approx(float(scores_N[int(row.id[5:])]), abs=2e-3)


def test_int8_keeps_cosines_and_binary_the_order_of_hamming_distances() -> None:
    vectors_ND = make_vectors(0)
    exact = vectors_ND @ vectors_ND.T
    int8_ND = restore_vectors(convert_vectors(vectors_ND, "int8"), "int8")
    np.testing.assert_allclose(int8_ND @ int8_ND.T, exact, atol=0.02)
    bits = convert_vectors(vectors_ND, "binary")
    binary_ND = restore_vectors(bits, "binary")
    distances = np.unpackbits(bits[:, None] ^ bits[None], axis=2).sum(2)
    np.testing.assert_allclose(binary_ND @ binary_ND.T, 1 - 2 * distances / DIM, atol=1e-6)


def test_columns_of_another_type_are_refused(tmp_path: Path) -> None:
    for kind in ("lancedb", "parquet"):
        address = f"{kind}://{tmp_path}/{kind}" + "/table" * (kind == "lancedb")
        rows = make_rows(make_vectors(0))
        open_table("here", address).write(rows, "float32")
        other = rows.set_column(3, "price", pa.array(["dear"] * ROWS))
        with pytest.raises(DataError, match="with the same types; write to a new table"):
            open_table("here", address).write(other, "float32")
        with pytest.raises(DataError, match="expected those of the"):
            open_table("here", address).write(rows.drop_columns("price"), "float32")


@pytest.mark.parametrize(
    "address", ["lancedb://", "lancedb://table", "chroma://a/b", "parquet://", "pgvector://name"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match=r"here: .* given; expected lancedb://FOLDER/TABLE"):
        open_table("here", address)


def test_a_database_that_does_not_answer_is_refused() -> None:
    for address in ("pgvector://me@127.0.0.1:1/database/table", "qdrant://127.0.0.1:1/table"):
        with pytest.raises(InputError, match=r"cannot be opened .*; expected a database; start it"):
            open_table("here", address)


def test_folders_become_absolute_and_servers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_address("lancedb://a/b") == f"lancedb://{tmp_path}/a/b"
    assert find_address("parquet://~/b") == f"parquet://{Path.home()}/b"
    for address in ("qdrant://host:6333/b", "pgvector://me@host/database/b"):
        assert find_address(address) == address
