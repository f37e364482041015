"""`docs/notebook.ipynb`, cell by cell, as Jupyter runs it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[nbformat.NotebookNode]:
    """The cells of code with what they gave."""
    notebook, folder = nbformat.read(NOTEBOOK, as_version=4), tmp_path_factory.mktemp("user")
    kept = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith(("RAY_", "RATCHET_"))
    }
    try:
        NotebookClient(
            notebook, timeout=500, resources={"metadata": {"path": str(folder)}}
        ).execute()
    finally:
        os.environ.update(kept)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def find_text(cell: nbformat.NotebookNode) -> str:
    """Return the value of a cell as text."""
    (found,) = (
        output.data["text/plain"]
        for output in cell.outputs
        if output.output_type == "execute_result"
    )
    return str(found)


def test_cells_show_plans_tables_and_metrics(cells: list[nbformat.NotebookNode]) -> None:
    _, plan, first, page, metrics, second, _, own, similar, models = cells
    (shown,) = (one.data["text/html"] for one in page.outputs)
    assert "</svg>" in shown
    assert "MAP@25" in find_text(own)
    plan, first, metrics, second, similar, models = map(
        find_text, (plan, first, metrics, second, similar, models)
    )
    assert "'iter0/finetune_embedder': 'open'" in plan
    for table in (first, second):
        assert "iteration 0" in table
        assert "MAP@25 ±" in table
    assert "'negatives'" in metrics
    assert similar.startswith("tensor([[")
    assert models.count(":embedder'") == 3


def test_progress_is_drawn_in_a_widget(cells: list[nbformat.NotebookNode]) -> None:
    for cell in (cells[2], cells[5], cells[7]):
        shown = [output.data for output in cell.outputs if output.output_type == "display_data"]
        assert any("application/vnd.jupyter.widget-view+json" in data for data in shown)
        texts = [data.get("text/plain", "") for data in shown]
        assert any(re.search(r"(?<!\d)(\d+)/\1 steps", text) for text in texts), texts


def test_the_file_is_valid() -> None:
    notebook = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert notebook.nbformat == 4
    install = notebook.cells[2].source
    assert "%pip install" in install
    assert "sentence-transformers" in install  # a plain installation lacks it


def test_the_file_has_no_results_of_its_own() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
