"""The compiled loops of a ranking against what they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_splitting import DEEP, build, sides_of
from untrained import ITEM, Untrained

from crossrank.serving import affine_layers, fused, pairing
from crossrank.serving.affine_layers import Polynomial
from crossrank.serving.ranker import Ranker
from crossrank.serving.splitting import Split

pytest.importorskip("numba", reason="compiles the loops")
LOW_RANK = {"layer": "low_rank", "rank": 2}
FITTING = [
    *({"structure": structure, "cross": cross} for structure in ("cross-only", "parallel") for cross in ({}, LOW_RANK)),
    {"structure": "parallel", "cross": {"context": ["user", "hour", "age"]}},
    {"structure": "cross-only", "cross": {"num_layers": 1}},
]


@pytest.mark.parametrize("num_items", [0, 1, 7, 40])
@pytest.mark.parametrize("settings", FITTING, ids=str)
@pytest.mark.parametrize("pays", [True, False])
@torch.no_grad()
def test_one_pass_over_the_rows_at_some_places_gives_the_model_s_logits(settings, num_items, pays, monkeypatch) -> None:
    monkeypatch.setattr(affine_layers, "READ", 0 if pays else np.inf)
    exact = build(**settings, **DEEP)
    model = build(**settings, **DEEP).float()
    sides, _ = sides_of(model.layout)
    split = Split(model.terms(), sides)
    assert split.kernels is not None
    two_full_layers = not settings.get("cross")
    assert split.num_products == (len(sides.context) if pays and two_full_layers else 0)
    c, v = torch.randn(3, len(sides.context)), torch.randn(50, len(sides.item))
    places = np.random.default_rng(0).integers(50, size=num_items)
    x0 = torch.empty(3, num_items, model.layout.input_dim).double()
    x0[..., sides.context], x0[..., sides.item] = c[:, None].double(), v[places].double()
    expected, rows = exact.logits(x0.flatten(0, 1)).reshape(3, num_items), split.item(v)
    found = split.logits_at(split.request(c[:1]), rows, places)
    torch.testing.assert_close(found.double(), expected[:1], rtol=1e-4, atol=1e-4)
    if split.num_products:
        spared = split.logits_at(split.request(c), rows, places, split.products(rows))
        torch.testing.assert_close(spared.double(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_a_request_is_worth_is_the_same_compiled_and_plain(monkeypatch) -> None:
    model = build(structure="cross-only", cross={"num_layers": 2}).float()
    sides, _ = sides_of(model.layout)
    network, head = model.terms().crosses[0]
    compiled = Polynomial(network, head, sides)
    monkeypatch.setattr("crossrank.serving.affine_layers.kernels", lambda: None)
    plain = Polynomial(network, head, sides)
    assert compiled._kernels is not None and plain._kernels is None
    c = torch.randn(1, len(sides.context))
    one, other = compiled.request(c), plain.request(c)
    for name in ("constant", "phi", "middle"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"structure": "stacked"}, {"deep": {"sizes": [4], "activation": "tanh"}}, {"cross": {"num_layers": 3}}],
    ids=str,
)
def test_other_models_are_ranked_by_numpy_and_torch(settings) -> None:
    model = build(**{**DEEP, **settings}).float()
    assert Split(model.terms(), sides_of(model.layout)[0]).kernels is None
    assert Split(build(**DEEP).terms(), sides_of(model.layout)[0]).kernels is None  # of float64


def test_what_is_not_finite_stays_so() -> None:
    loops = fused.kernels()
    assert loops is not None
    rows, places = np.array([[1, np.nan, -1, np.inf]], np.float32), np.zeros(1, np.int64)
    kept, flat, hidden = np.empty((1, 1), np.float32), np.empty(1, np.float32), np.empty((1, 3), np.float32)
    products, one, nothing = np.empty((0, 0), np.float32), np.ones(1, np.float32), np.empty(0, np.float32)
    loops.gather(0, places, rows, products, one, nothing, np.zeros(3, np.float32), kept, flat, hidden)
    np.testing.assert_array_equal(hidden, [[np.nan, 0, np.inf]])
    np.testing.assert_array_equal([kept[0, 0], flat[0]], [1, 1])


@pytest.mark.parametrize("structure", ["cross-only", "parallel"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("memory", [2**20, 0])
@pytest.mark.parametrize("ensemble", [1, 3])
def test_candidates_are_ranked_alike_with_and_without_the_extra(
    dataset, clicks, structure, precision, memory, ensemble, monkeypatch
) -> None:
    monkeypatch.setattr(affine_layers, "READ", 0)
    monkeypatch.setattr(pairing, "MOST_PRODUCTS", memory)
    settings = {"structure": structure, "deep": {"sizes": [6, 4]}, "ensemble": ensemble}
    run = Untrained(dataset.encoder, double=False, **settings)
    items = clicks.select(ITEM).unique(maintain_order=True).with_row_index("number")
    context, another = (clicks.drop(ITEM).row(number, named=True) for number in (0, 1))
    ranker = Ranker(run).load(items, id="number", precision=precision)
    known = ranker.loaded.known
    assert ranker.pairing.fuses(known) is (precision == "float32")
    assert (known.products is not None) is (precision == "float32" and memory > 0)
    assert ranker.bytes_per_item == sum(one.nbytes for one in (known.rows, known.products) if one is not None) / len(
        known
    )
    some = [4, 1, 7, 2]
    compiled = ranker.rank(context, some)
    many = ranker.rank_many([another, context], some)[1]
    monkeypatch.setattr("crossrank.serving.affine_layers.kernels", lambda: None)
    monkeypatch.setattr("crossrank.serving.splitting.kernels", lambda: None)
    plain = Ranker(run).load(items, id="number", precision=precision)
    assert not plain.pairing.fuses(plain.loaded.known)
    for other in (plain.rank(context, some), many):
        assert compiled.ids == other.ids
        np.testing.assert_allclose(compiled.logits, other.logits, rtol=1e-4, atol=1e-5)
