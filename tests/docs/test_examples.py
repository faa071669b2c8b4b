"""The examples run: notebooks from the first cell to the last, kept without outputs, and the script of a guide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
NotebookClient(notebook).execute()
"""


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path) -> None:
    if notebook.stem == "movielens" and "CROSSRANK_DATA" not in os.environ:
        pytest.skip("CROSSRANK_DATA is not set: the real data is not here")
    # In a process of its own: the kernel's client warns about things that are errors in this one.
    words = [sys.executable, "-c", EXECUTE, str(notebook)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(notebook) -> None:
    import nbformat

    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.slow
def test_the_script_of_a_guide_prints_its_tables(dataset, tmp_path) -> None:
    script = ROOT / "examples" / "compare_structures.py"
    options = ["--into", "runs", "--seeds", "1", "--steps", "5", "--questions", "structure"]
    words = [sys.executable, str(script), str(dataset.path), *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("|") == 4 * (2 + 4)  # three columns; head, rule and four models
