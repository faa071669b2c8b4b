"""What the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crossrank.data.generators.demo import schema

sys.path.insert(0, str(Path(__file__).parent))

from commands import SMALL, crossrank


@pytest.fixture(scope="module")
def place(clicks, tmp_path_factory):
    """A folder with a table, its schema, a dataset and a run."""
    folder = tmp_path_factory.mktemp("place")
    clicks.write_csv(folder / "clicks.csv")
    schema().save(folder / "schema.json")
    crossrank("prepare", "clicks.csv", "--schema", "schema.json", "--into", "dataset", cwd=folder)
    crossrank("train", "dataset", "--into", "runs/first", *SMALL, cwd=folder)
    return folder
