"""Ray where there is none; tests/distributed has the rest."""

from __future__ import annotations

import sys

import pytest

from crossrank.data.prepare import prepare
from crossrank.errors import CrossRankError
from crossrank.schema import Categorical, Label, Schema


def test_without_ray_the_engine_says_how_to_install_it_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "clicks.csv").write_text("click,x\n0,a\n1,b\n")
    schema = Schema([Categorical(name="x")], Label(name="click"))
    with pytest.raises(CrossRankError, match=r"needs Ray; it is not installed.*pip install 'ray\[train\]"):
        prepare(tmp_path / "clicks.csv", schema, tmp_path / "made", engine="ray")
    assert [path.name for path in tmp_path.iterdir()] == ["clicks.csv"]
