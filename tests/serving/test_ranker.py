"""Rankings against the plain model's scores of full rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from untrained import ITEM, Untrained

import crossrank as cr
from crossrank.data import Encoder
from crossrank.data.generators.demo import schema as demo_schema
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, DataError, SchemaError
from crossrank.models import MODELS
from crossrank.schema import Cross, Date, Schema
from crossrank.serving.ranker import Ranker

SPLIT = {"dcn-v2", "lcn", "dcn-mix", "gdcn", "cross-net", "cross-net-mix", "dnn", "fm", "deepfm", "nfm", "pnn"}


@pytest.fixture(scope="module")
def items(clicks) -> pl.DataFrame:
    """Two hundred items, the last of them unseen, or with nothing known."""
    items = clicks.unique("item", maintain_order=True).select(ITEM).head(200)
    unseen = {"item": ["new", "nothing"], "category": ["unheard", None], "tags": ["x|y", None], "price": [1e6, None]}
    return pl.concat([items, pl.DataFrame({**unseen, "age_days": [None, None]}, schema=items.schema)])


@pytest.fixture(scope="module")
def context(clicks) -> dict:
    return {name: value for name, value in clicks.row(5, named=True).items() if name not in [*ITEM, "click"]}


def full_rows(context, items) -> list[dict]:
    return [{**context, **row} for row in items.iter_rows(named=True)]


def expected(run, context, items):
    with torch.no_grad():
        return run.model(run.encoder.encode_rows(full_rows(context, items)).features()).numpy()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_ranks_by_its_own_scores_in_its_own_order(dataset, items, context, name) -> None:
    run = Untrained(dataset.encoder, name=name)
    ranker = Ranker(run).load(items, id="item")
    if name == "dcn-v2":
        assert ranker.how == "split"
    assert (ranker.how == "split") is (name in SPLIT)
    plain = expected(run, context, items)
    found = ranker.rank(context, k=len(items))
    np.testing.assert_allclose(found.logits, plain[found.positions], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found.positions, np.argsort(-plain, kind="stable"))
    assert found.ids == [items["item"][int(place)] for place in found.positions]
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp(-found.logits)), rtol=1e-6)


@pytest.mark.parametrize(
    ("cross", "how"),
    [
        ({"inner": "relu", "heads": 2, "gate": "information"}, "split"),
        ({"source": "previous", "inner": "relu"}, "plain"),
        ({"context": ["user", "hour"]}, "split"),
        ({"pooled": "first"}, "plain"),
    ],
    ids=str,
)
def test_every_switch_of_the_cross_layers_ranks_by_the_model_s_scores(dataset, items, context, cross, how) -> None:
    run = Untrained(dataset.encoder, structure="parallel", cross={"num_layers": 3, **cross})
    ranker = Ranker(run).load(items, id="item")
    assert ranker.how.startswith(how)
    found = ranker.rank(context, k=len(items))
    np.testing.assert_allclose(found.logits, expected(run, context, items)[found.positions], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("structure", ["cross-only", "parallel", "stacked"])
def test_scores_in_float32_are_those_of_predict(dataset, items, context, structure) -> None:
    run = Untrained(dataset.encoder, structure=structure, double=False)
    found = Ranker(run).load(items, id="item").rank(context, k=50)
    predicted = run.predict(full_rows(context, items))
    np.testing.assert_allclose(found.scores, predicted[found.positions], atol=1e-6)
    half = Ranker(run).load(items, id="item", precision="bfloat16")
    assert half.bytes_per_item * 2 == Ranker(run).load(items, id="item").loaded.known.rows[0].nbytes
    np.testing.assert_allclose(half.rank(context, k=300).scores.mean(), predicted.mean(), atol=0.02)


PAIRS = [
    {"name": "fm"},
    {"name": "deepfm"},
    {"name": "nfm"},
    *({"name": "pnn", "product": product} for product in ("inner", "both")),
    *({"name": "pnn", "kernel": kernel} for kernel in ("matrix", "vector", "number")),
    {"name": "pnn", "deep": {"sizes": []}},
]


@pytest.mark.parametrize("settings", PAIRS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_products_of_fields_are_taken_apart_in_float32(dataset, items, context, settings) -> None:
    run = Untrained(dataset.encoder, **settings, double=False)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(std=0.3)
    ranker = Ranker(run).load(items, id="item")
    assert ranker.how == "split"
    found = ranker.rank(context, k=len(items))
    np.testing.assert_allclose(found.logits, expected(run, context, items)[found.positions], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numbers", [True, False])
def test_dlrm_is_taken_apart_where_it_has_no_network_over_numbers(clicks, items, context, numbers) -> None:
    schema = [one for one in demo_schema().in_table if numbers or one.name not in ("price", "age_days")]
    encoder = Encoder.fit(clicks, Schema(schema, demo_schema().label))
    run = Untrained(encoder, name="dlrm")
    ranker = Ranker(run).load(items, id="item")
    assert (ranker.how == "split") is not numbers
    found = ranker.rank(context, k=len(items))
    np.testing.assert_allclose(found.logits, expected(run, context, items)[found.positions], rtol=1e-6, atol=1e-6)


def test_an_ensemble_ranks_by_the_mean_of_its_members(dataset, items, context) -> None:
    run = Untrained(dataset.encoder, structure="parallel", ensemble=3)
    ranker = Ranker(run).load(items, id="item")
    assert ranker.how == "split"
    found = ranker.rank(context)
    np.testing.assert_allclose(found.logits, expected(run, context, items)[found.positions], atol=1e-6)


def test_a_catalogue_may_be_a_frame_a_file_or_dictionaries(dataset, items, context, tmp_path) -> None:
    run = Untrained(dataset.encoder)
    items.write_parquet(tmp_path / "items.parquet")
    items.write_csv(tmp_path / "items.csv")
    sources = [
        items,
        pd.DataFrame(items.to_dict(as_series=False)),
        tmp_path / "items.parquet",
        tmp_path / "items.csv",
        items.to_dicts(),
    ]
    rankings = [Ranker(run).load(source, id="item").rank(context) for source in sources]
    for ranking in rankings[1:]:
        assert ranking.ids == rankings[0].ids
        np.testing.assert_allclose(ranking.logits, rankings[0].logits, atol=1e-6)


def test_candidates_are_ids_or_rows(dataset, items, context) -> None:
    ranker = Ranker(Untrained(dataset.encoder)).load(items, id="item")
    every = ranker.rank(context, k=len(items))
    some = items["item"].to_list()[50:10:-1]
    by_id = ranker.rank(context, np.array(some), k=5)
    assert by_id.ids == [id_ for id_ in every.ids if id_ in some][:5]
    assert by_id.ids == [some[place] for place in by_id.positions]
    rows = items[10:60].to_dicts()
    by_row = ranker.rank(context, rows, k=5)
    assert by_row.ids == [rows[place]["item"] for place in by_row.positions]
    without = Ranker(Untrained(dataset.encoder)).rank(context, rows, k=5)
    assert without.ids == by_row.positions.tolist()
    np.testing.assert_allclose(without.logits, by_row.logits, atol=1e-9)
    assert len(ranker.rank(context, [], k=5)) == 0


def test_what_is_excluded_or_masked_out_is_not_ranked(dataset, items, context) -> None:
    ranker = Ranker(Untrained(dataset.encoder)).load(items, id="item")
    every = ranker.rank(context, k=len(items)).ids
    assert ranker.rank(context, k=3, exclude=[*every[:2], "never heard of"]).ids == every[2:5]
    assert ranker.rank(context, k=3, exclude=["never heard of"]).ids == every[:3]
    mask = np.isin(items["item"].to_list(), every[::2])
    assert ranker.rank(context, k=4, mask=mask, exclude=every[:1]).ids == every[2:10:2]
    assert ranker.rank(context, every[:6], k=9, mask=[False] * 5 + [True]).ids == every[5:6]


def test_of_equal_items_the_first_comes_first(dataset, items, context) -> None:
    same = pl.concat([items.head(1).with_columns(pl.lit(name).alias("name")) for name in "abcdefgh"])
    ranker = Ranker(Untrained(dataset.encoder)).load(same, id="name")
    assert ranker.rank(context, k=3).ids == ["a", "b", "c"]
    assert ranker.rank(context, list("hgfedcba"), k=3).ids == ["h", "g", "f"]


def test_unseen_and_missing_values_of_the_context_rank_too(dataset, items, context) -> None:
    run = Untrained(dataset.encoder, structure="parallel")
    ranker = Ranker(run).load(items, id="item")
    odd = [dict.fromkeys(context), {**context, "user": "nobody", "hour": None}]
    for one, found in zip(odd, ranker.rank_many(odd, k=len(items)), strict=True):
        np.testing.assert_allclose(found.logits, expected(run, one, items)[found.positions], atol=1e-6)


@pytest.fixture(scope="module")
def wide(clicks, tmp_path_factory):
    """Numbers as values and pieces, dates on both sides, crosses of one side."""
    days = pl.Series("made", [f"2024-0{1 + i % 9}-1{i % 9}" for i in range(len(clicks))])
    times = pl.Series("time", [f"2024-11-1{i % 9} 1{i % 7}:00" for i in range(len(clicks))])
    frame = clicks.with_columns(days, times)
    from crossrank.data.generators.demo import schema

    columns = [
        dataclasses.replace(column, encoding="scalar+values+pieces") if column.kind == "numeric" else column
        for column in schema().features
    ]
    dates = [Date(name="made", parts=("month", "age"), reference="2025-01-01"), Date(name="time", parts=("hour",))]
    crosses = [Cross(of=("country", "device")), Cross(of=("item", "category"), ids=False), Cross(of=("user",))]
    whole = Schema([*columns, *dates, *crosses], schema().label)
    return prepare(frame, whole, tmp_path_factory.mktemp("wide") / "dataset"), frame


def rows_of(frame):
    own = [*ITEM, "made"]
    catalogue = frame.unique("item", maintain_order=True).select(own).head(50)
    return catalogue, {name: value for name, value in frame.row(3, named=True).items() if name not in own}


@pytest.mark.parametrize("structure", ["cross-only", "stacked"])
def test_dates_pieces_values_and_crosses_of_one_side_are_split(wide, structure) -> None:
    dataset, frame = wide
    items, context = rows_of(frame)
    run = Untrained(dataset.encoder, structure=structure)
    for source in (items, items.to_dicts()):
        ranker = Ranker(run).load(source, id="item")
        assert ranker.how == "split"
        found = ranker.rank(context, k=50)
        np.testing.assert_allclose(found.logits, expected(run, context, items)[found.positions], atol=1e-6)


@pytest.fixture(scope="module")
def crossed(clicks, tmp_path_factory):
    """Crosses of both sides, of one side, of a number by its value, of three columns."""
    columns = [
        dataclasses.replace(one, encoding="scalar+values") if one.kind == "numeric" else one
        for one in demo_schema().features
    ]
    crosses = [
        Cross(of=("user", "category"), min_count=1),
        Cross(of=("category", "device", "price"), min_count=1),
        Cross(of=("item", "category")),
        Cross(of=("item", "country"), ids=False),
        Cross(of=("user", "item"), statistics=False, min_count=1),
        Cross(of=("user", "hour"), ids=False),
    ]
    whole = Schema([*columns, *crosses], demo_schema().label)
    return prepare(clicks, whole, tmp_path_factory.mktemp("crossed") / "dataset")


@pytest.mark.parametrize(
    "settings",
    [
        {"structure": "stacked"},
        {"structure": "parallel", "ensemble": 2},
        *({"structure": "cross-only", "cross": {"num_layers": layers}} for layers in (1, 2, 3)),
        {"name": "cross-net", "cross": {"layer": "low_rank", "rank": 3}},
        {"structure": "parallel", "cross": {"layer": "mixture", "rank": 2, "num_experts": 2}},
        {
            "structure": "stacked",
            "cross": {"context": ["user", "country", "language", "device", "hour", "user x hour (statistics)"]},
        },
    ],
    ids=str,
)
def test_crosses_of_both_sides_are_looked_up_for_each_candidate(crossed, clicks, items, context, settings) -> None:
    run = Untrained(crossed.encoder, **settings)
    ranker = Ranker(run).load(items, id="item")
    assert ranker.how == "split"
    contexts = [context, dict.fromkeys(context), {**context, "user": "nobody"}]
    contexts += clicks.select(*context).head(8).to_dicts()
    for one, found in zip(contexts, ranker.rank_many(contexts, k=len(items)), strict=True):
        plain = expected(run, one, items)
        np.testing.assert_allclose(found.logits, plain[found.positions], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(found.positions, np.argsort(-plain, kind="stable"))
        few = ranker.rank(one, found.ids[7:3:-1])  # so few are searched for
        assert few.ids == found.ids[4:8]
        np.testing.assert_allclose(few.logits, found.logits[4:8], atol=1e-9)
    rows = items.head(20).to_dicts()
    np.testing.assert_allclose(
        Ranker(run).rank(context, rows, k=5).logits,
        np.sort(expected(run, context, items.head(20)))[::-1][:5],
        atol=1e-6,
    )


def test_crosses_of_both_sides_rank_in_float32_as_predict_does(crossed, items, context) -> None:
    run = Untrained(crossed.encoder, structure="parallel", double=False)
    ranker = Ranker(run).load(items, id="item")
    found, predicted = ranker.rank(context, k=50), run.predict(full_rows(context, items))
    np.testing.assert_allclose(found.scores, predicted[found.positions], atol=1e-6)
    assert ranker.bytes_per_item == ranker.loaded.known.rows.shape[1] * 4 + 4 * 4  # a number for each of four crosses


def test_products_of_fields_with_a_cross_of_both_sides_are_scored_plainly_and_say_so(crossed, items, context) -> None:
    run = Untrained(crossed.encoder, name="pnn")
    ranker = Ranker(run).load(items, id="item")
    assert ranker.how.startswith("plain: 'user x category',")
    assert ranker.how.endswith("cross the context with the item, and PNN multiplies them again")
    found = ranker.rank(context, k=len(items))
    np.testing.assert_allclose(found.logits, expected(run, context, items)[found.positions], atol=1e-6)


@pytest.mark.parametrize("name", ["dcn-v2", "cross-net", "cross-net-mix", "dnn", "deepfm", "pnn", "autoint"])
def test_requests_that_are_stacked_are_ranked_as_each_alone(dataset, clicks, items, context, name) -> None:
    ranker = Ranker(Untrained(dataset.encoder, name=name)).load(items, id="item")
    contexts = clicks.select(*context).head(40).to_dicts()
    options = {"k": 30, "exclude": items["item"].to_list()[:3]}
    for candidates in (None, items["item"].to_list()[5:60]):
        for one, found in zip(contexts, ranker.rank_many(contexts, candidates, **options), strict=True):
            alone = ranker.rank(one, candidates, **options)
            assert found.ids == alone.ids
            np.testing.assert_allclose(found.logits, alone.logits, rtol=1e-12, atol=1e-12)
    assert ranker.rank_many([]) == []
    with pytest.raises(SchemaError, match="missing from context 2"):
        ranker.rank_many([context, {}])
    assert all(one.explanations is None for one in ranker.rank_many(contexts[:2]))


def test_a_model_whose_formula_is_not_its_terms_is_scored_plainly(dataset, items, context, monkeypatch) -> None:
    run = Untrained(dataset.encoder, structure="cross-only")
    original = type(run.model).logits
    monkeypatch.setattr(type(run.model), "logits", lambda self, x0: 2 * original(self, x0))
    ranker = Ranker(run).load(items, id="item")
    assert ranker.how == "plain: DCNV2 has another formula than its terms"
    found = ranker.rank(context)
    np.testing.assert_allclose(found.logits, expected(run, context, items)[found.positions], atol=1e-6)


def test_a_formula_is_looked_at_once_there_is_a_context(dataset, items, context, monkeypatch) -> None:
    run = Untrained(dataset.encoder, structure="cross-only")
    original = type(run.model).logits
    monkeypatch.setattr(type(run.model), "logits", lambda self, x0: 2 * original(self, x0))
    ranker, rows = Ranker(run), items.head(20).to_dicts()
    assert ranker.rank_many([], rows) == []
    found = ranker.rank(context, rows)
    np.testing.assert_allclose(found.logits, expected(run, context, items.head(20))[found.positions], atol=1e-6)


def test_the_pairs_behind_a_score_are_told(run, items, context) -> None:
    ranker = cr.Ranker.open(run.path).load(items, id="item")
    found = ranker.rank(context, k=2, explain=True)
    for explanation, logit in zip(found.explanations, found.logits, strict=True):
        assert explanation.logit == pytest.approx(logit, abs=1e-5)
    assert found.explanations[0].pairs
    rows = items.head(3).to_dicts()
    assert len(ranker.rank(context, rows, k=2, explain=True).explanations) == 2


def declared(encoder, **sides) -> Encoder:
    columns = [dataclasses.replace(one, side=sides.get(one.name)) for one in encoder.schema.features]
    schema = dataclasses.replace(encoder.schema, features=columns)
    return Encoder(schema, encoder.vocabularies, encoder.statistics)


def test_sides_of_the_schema_are_checked_against_the_catalogue(dataset, items, context) -> None:
    encoder = declared(dataset.encoder, item="item", user="context", price="item")
    assert Schema.from_dict(encoder.schema.to_dict()) == encoder.schema
    run = Untrained(encoder)
    assert Ranker(run).load(items, id="item").how == "split"
    with pytest.raises(SchemaError, match=r"Column 'price' of the schema is missing from the catalogue"):
        Ranker(run).load(items.drop("price"), id="item")
    with pytest.raises(SchemaError, match=r"Column 'user' is the context's by the schema, so the catalogue must not"):
        Ranker(run).load(items.with_columns(pl.lit("u1").alias("user")), id="item")
    everything = items.with_columns(pl.lit("u1").alias("user"), pl.lit("DE").alias("country"))
    named = Ranker(run, item=ITEM).load(everything, id="item").rank(context)
    assert named.ids == Ranker(run).load(items, id="item").rank(context).ids


def test_mistakes_are_told_with_a_way_out(dataset, items, context) -> None:
    run = Untrained(dataset.encoder)
    ranker = Ranker(run).load(items, id="item")
    for call, kind, message in [
        (
            lambda: ranker.rank(context, ["ad-nothing"]),
            DataError,
            r"must be an item of the catalogue; got 'ad-nothing'",
        ),
        (lambda: ranker.rank(context, [["ad"]]), DataError, r"must be an item of the catalogue; got \['ad'\]"),
        (lambda: ranker.rank({"user": "u1"}), SchemaError, r"Column '\w+' of the schema is missing from the context"),
        (lambda: ranker.rank(context, [{"item": 1}]), SchemaError, r"Column 'category' .* missing from candidate 1"),
        (lambda: ranker.rank(context, k=0), ConfigError, r"k must be a number from 1 on; got 0"),
        (lambda: ranker.rank(context, mask=[True]), DataError, r"A mask must have a true or false for each of 202"),
        (lambda: Ranker(run).rank(context), ConfigError, r"none is loaded. Call load"),
        (lambda: Ranker(run, item=["itme"]).load(items, id="item"), SchemaError, r"Did you mean 'item'\?"),
        (lambda: Ranker(run).load(items, id="sku"), SchemaError, r"Column 'sku' .* missing from the catalogue"),
        (
            lambda: Ranker(run).load(pl.DataFrame({"sku": [1]}), id="sku"),
            SchemaError,
            r"must have columns of the schema",
        ),
        (lambda: Ranker(run).load(pl.concat([items, items]), id="item"), DataError, r"an id of its own; 'ad\d+'"),
        (lambda: Ranker(run).load([], id="item"), SchemaError, r"must have columns of the schema"),
        (lambda: Ranker(run).load(items, id="item", precision="int3"), ConfigError, r"precision must be"),
    ]:
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("ids", [[7, 3, 2_000, 0], [1, 10**12, 5, 2**70], [-4, 2, 3, 4], ["7", "3", "b", "a"]])
def test_ids_of_any_kind_are_found_where_they_stand(dataset, items, context, ids) -> None:
    few = items.head(4).drop("item").to_dicts()
    run = Untrained(dataset.encoder.with_crosses([]))
    ranker = Ranker(run, item=ITEM[1:]).load([{**row, "id": id_} for row, id_ in zip(few, ids, strict=True)], id="id")
    context = {**context, "item": "i1"}
    assert ranker.loaded.places(ids[::-1]).tolist() == [3, 2, 1, 0]
    assert sorted(map(str, ranker.rank(context, ids[1:3]).ids)) == sorted(map(str, ids[1:3]))
    for unknown in (999, 1 - 10**9, 2**80, "9", 0.5, None, [1]):
        with pytest.raises(DataError, match="must be an item of the catalogue"):
            ranker.rank(context, [*ids, unknown])


@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_a_deep_network_in_bfloat16_moves_scores_a_little(dataset, items, context, structure) -> None:
    run = Untrained(dataset.encoder, structure=structure, double=False, deep={"sizes": [32, 16]})
    half = Ranker(run, deep_precision="bfloat16").load(items, id="item")
    assert half.how == "split"
    found, plain = half.rank(context, k=len(items)), run.predict(full_rows(context, items))
    assert not np.array_equal(found.scores, plain[found.positions])
    np.testing.assert_allclose(found.scores, plain[found.positions], atol=0.005)
    with pytest.raises(ConfigError, match="deep_precision must be one of"):
        Ranker(run, deep_precision="int4")
