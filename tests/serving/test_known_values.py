"""The shares that single values have in a request's first products, against the products."""

from __future__ import annotations

import numpy as np
import pytest
from untrained import ITEM, Untrained

from crossrank.serving import known_values, pairing
from crossrank.serving.known_values import KnownValues, _most_frequent
from crossrank.serving.ranker import Ranker

pytest.importorskip("numba", reason="compiles the sums")


def test_the_most_frequent_values_of_all_columns_are_kept() -> None:
    counts = [np.array([0, 5, 9]), np.array([7, 1]), np.array([8, 8, 8])]
    for most, expected in ((0, [[], [], []]), (3, [[2], [], [0, 1]]), (99, [[0, 1, 2], [0, 1], [0, 1, 2]])):
        assert [ids.tolist() for ids in _most_frequent(counts, most)] == expected


@pytest.mark.parametrize("kept", [0, 1, 40, 10**6])
@pytest.mark.parametrize(
    "settings",
    [
        {"structure": "cross-only"},
        {"structure": "parallel"},
        {"structure": "parallel", "ensemble": 2},
        {"structure": "stacked", "cross": {"context": ["user", "country", "language", "device", "hour"]}},
    ],
    ids=str,
)
def test_requests_are_alike_whatever_values_are_kept(dataset, clicks, kept, settings, monkeypatch) -> None:
    monkeypatch.setattr(known_values, "LEAST", 0)
    run = Untrained(dataset.encoder, double=False, **settings)
    ranker = Ranker(run).load(clicks.select(ITEM).unique(maintain_order=True).with_row_index("number"), id="number")
    members = ranker.pairing.members
    monkeypatch.setattr(pairing, "MOST_VALUES", 4 * kept * len(members[0].split.of_c) * len(members))
    ranker.pairing.know_values()
    contexts = [*clicks.drop(ITEM).head(30).to_dicts(), dict.fromkeys(clicks.drop(ITEM).columns)]
    for rows in (ranker.pairing.joiner.half_rows([one], item=False, called="context") for one in contexts):
        for member in members:
            assert isinstance(member._known, KnownValues)
            c = member.context(rows)
            found = member._known.products(rows, c)
            expected = c.double().numpy() @ member.split.of_c.T.astype(np.float64)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    together = ranker.rank_many(contexts, [1, 5, 3])
    alone = [ranker.rank(one, [1, 5, 3]) for one in contexts]
    for one, other in zip(together, alone, strict=True):  # those of several requests are products of matrices
        assert one.ids == other.ids
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-5)


def test_few_numbers_and_float64_are_multiplied_as_they_are(dataset, clicks) -> None:
    items = clicks.select(ITEM).unique(maintain_order=True).with_row_index("number")
    for double in (False, True):
        ranker = Ranker(Untrained(dataset.encoder, double=double)).load(items, id="number")
        assert ranker.pairing.members[0]._known is None
