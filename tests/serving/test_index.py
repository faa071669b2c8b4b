"""Retrieval by inner products against the ranking of every item."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from untrained import ITEM, Untrained

from crossrank.errors import ConfigError, RunError
from crossrank.serving import pruning
from crossrank.serving.ranker import Ranker

LAYERS = [{"num_layers": 1}, {"num_layers": 2}, {"num_layers": 2, "layer": "low_rank", "rank": 2}]


@pytest.fixture(scope="module")
def items(clicks) -> pl.DataFrame:
    return clicks.select(ITEM).with_row_index("sku")


@pytest.fixture(scope="module")
def contexts(clicks) -> list[dict]:
    return clicks.drop(*ITEM, "click").head(12).to_dicts()


@pytest.mark.parametrize("cross", LAYERS, ids=str)
def test_an_exact_index_is_the_ranking_of_the_whole_catalogue(dataset, items, contexts, cross) -> None:
    ranker = Ranker(Untrained(dataset.encoder, structure="cross-only", cross=cross)).load(items, id="sku")
    index = ranker.index("exact")
    assert index.recall == 1
    assert index.search(contexts[0], k=7).ids == ranker.rank(contexts[0], k=7).ids


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("options", [{}, {"double": False}, {"ensemble": 2}, {"cross": LAYERS[0]}], ids=str)
def test_items_that_cannot_be_among_the_best_are_not_scored(
    dataset, items, contexts, options, scale, monkeypatch
) -> None:
    run = Untrained(dataset.encoder, **{"structure": "cross-only", "cross": LAYERS[2], **options})
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(std=0.4 * scale)
    mask = np.arange(len(items)) % 3 > 0
    filters = [{}, {"exclude": items["sku"].to_list()[::2]}, {"mask": mask}, {"mask": mask, "exclude": [1, 2, 4]}]
    filters += [{"mask": np.arange(len(items)) < 5}, {"mask": np.zeros(len(items), bool)}]
    everything = Ranker(run).load(items, id="sku")
    monkeypatch.setattr(pruning, "FEWEST", 0)
    monkeypatch.setattr(pruning, "SOME", 10)
    ranker, scored = Ranker(run).load(items, id="sku"), []
    take = ranker.loaded.take
    monkeypatch.setattr(ranker.loaded, "take", lambda places: scored.append(len(places)) or take(places))
    for context in contexts[:3]:
        for one in filters:
            for k in (3, 50, len(items)):
                expected, found = everything.rank(context, k=k, **one), ranker.rank(context, k=k, **one)
                assert found.ids == expected.ids
                np.testing.assert_array_equal(found.positions, expected.positions)
                np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-5, atol=1e-5)
    assert ("cross" in options) is not bool(scored)  # one layer has no M
    assert not scored or min(scored[::3]) < len(items) / 2 or scale > 1


def test_of_a_label_with_bounds_all_that_reach_them_are_equal(dataset, items, contexts, monkeypatch) -> None:
    run = Untrained(dataset.encoder, structure="cross-only", cross=LAYERS[2])
    with torch.no_grad():
        run.model.label_high.fill_(-0.02)
    expected = Ranker(run).load(items, id="sku").rank(contexts[0], k=9)
    monkeypatch.setattr(pruning, "FEWEST", 0)
    found = Ranker(run).load(items, id="sku").rank(contexts[0], k=9)
    assert found.ids == expected.ids
    np.testing.assert_allclose(found.logits, -0.02)


@pytest.mark.parametrize("cross", LAYERS, ids=str)
def test_an_approximate_index_finds_the_share_of_the_best_that_it_says(dataset, items, contexts, cross) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    run = Untrained(dataset.encoder, structure="cross-only", cross=cross, double=False)
    ranker = Ranker(run).load(items, id="sku")
    index = ranker.index("faiss", contexts=contexts, k=10, recall=0.8)
    assert 0.8 <= index.recall <= 1
    assert 1 <= index.num_probes <= index.num_cells
    found = 0
    for context in contexts:
        best, near = ranker.rank(context, k=10), index.search(context, k=10)
        assert near.ids == [items["sku"][int(place)] for place in near.positions]
        assert (np.diff(near.logits) <= 0).all()
        found += len({*best.positions.tolist()} & {*near.positions.tolist()})
    assert found / (10 * len(contexts)) == pytest.approx(index.recall)
    everything = ranker.index("faiss", contexts=contexts, recall=1.0)
    assert everything.recall == pytest.approx(1, abs=0.01)


def test_a_saved_index_finds_the_same_and_knows_its_recall(dataset, items, contexts, tmp_path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    run = Untrained(dataset.encoder, structure="cross-only", double=False)
    ranker = Ranker(run).load(items, id="sku")
    made = ranker.index("faiss", contexts=contexts, k=10, recall=0.8)
    made.save(tmp_path / "index")
    opened = Ranker(run).load(items, id="sku").open_index(tmp_path / "index")
    assert (opened.recall, opened.k) == (made.recall, 10)
    assert (opened.num_probes, opened.num_cells) == (made.num_probes, made.num_cells)
    for context in contexts:
        assert opened.search(context, k=10).ids == made.search(context, k=10).ids
    with pytest.raises(ConfigError, match=r"must be of the ranker's model and items; it is of others"):
        Ranker(run).load(items.reverse(), id="sku").open_index(tmp_path / "index")
    with (tmp_path / "index" / "index.faiss").open("ab") as file:
        file.write(b"more")
    with pytest.raises(RunError, match="is damaged"):
        ranker.open_index(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text("[]")
    with pytest.raises(RunError, match=r"index\.json is not what it must be.*Make it again"):
        ranker.open_index(tmp_path / "index")
    with pytest.raises(ConfigError, match="nothing to save"):
        ranker.index("exact").save(tmp_path / "exact")
    assert not (tmp_path / "exact").exists()


def test_other_models_have_no_index_and_say_what_to_do(dataset, items, contexts) -> None:
    for settings in (
        {"structure": "parallel"},
        {"structure": "cross-only", "cross": {"num_layers": 3}},
        {"name": "fm"},
    ):
        ranker = Ranker(Untrained(dataset.encoder, **settings)).load(items, id="sku")
        with pytest.raises(ConfigError, match=r"inner product.*rank\(context, k=...\) ranks the whole catalogue"):
            ranker.index()
    ranker = Ranker(Untrained(dataset.encoder, structure="cross-only")).load(items, id="sku")
    with pytest.raises(ConfigError, match=r"measures its recall; it needs contexts"):
        ranker.index("faiss")
    with pytest.raises(ConfigError, match=r"kind must be one of 'exact', 'faiss'; got 'hnsw'"):
        ranker.index("hnsw")
