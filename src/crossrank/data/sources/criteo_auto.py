"""Criteo's set as in :mod:`crossrank.data.sources.criteo`, with more of its numbers than the paper takes."""

from __future__ import annotations

from crossrank.data.sources.criteo import SPLIT as SPLIT
from crossrank.data.sources.criteo import open_set as open_set
from crossrank.data.sources.criteo import schema as paper_schema
from crossrank.schema import Numeric, Schema


def schema(*, min_count: int = 10) -> Schema:
    """The paper's features, the numbers encoded as ``auto``: the logarithm, the id of its value, pieces, and missing.

    Args:
        min_count: categories seen less often in training share one id.
    """
    paper = paper_schema(min_count=min_count)
    numeric = [Numeric(name=one.name, log_shift=one.log_shift) for one in paper.numeric]
    return Schema([*numeric, *paper.categorical], paper.label)
