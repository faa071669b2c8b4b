"""Which slice of x0 each feature fills."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.errors import ConfigError
from crossrank.schema import Feature, InputLayout

FEATURES = [
    Feature("price", "numeric"),
    Feature("user", "categorical", 10_000),
    Feature("tags", "multivalent", 81),
    Feature("age", "numeric"),
    Feature("hour", "categorical", 16),
]


def widths(layout):
    return {slot.name: slot.width for slot in layout.slots}


def test_embedded_features_stand_first_then_bags_then_numbers_each_in_order():
    layout = InputLayout.plan(FEATURES, embedding_dim=8)
    assert layout.names == ("user", "hour", "tags", "price", "age")
    assert [slot.slice for slot in layout.slots] == [
        slice(0, 8),
        slice(8, 16),
        slice(16, 24),
        slice(24, 25),
        slice(25, 26),
    ]
    assert layout.input_dim == 26
    assert [slot.name for slot in layout.embedded] == ["user", "hour", "tags"]
    assert [slot.name for slot in layout.of_kind("numeric")] == ["price", "age"]
    assert layout["tags"].vocab_size == 81
    with pytest.raises(KeyError):
        layout["tag"]


def test_the_rule_is_six_times_the_fourth_root():
    layout = InputLayout.plan(FEATURES, embedding_dim="rule")
    assert widths(layout) == {"user": 60, "hour": 12, "tags": 18, "price": 1, "age": 1}


def test_the_average_is_the_mean_of_the_rule_for_every_feature():
    layout = InputLayout.plan(FEATURES, embedding_dim="average")
    assert widths(layout) == {"user": 30, "hour": 30, "tags": 30, "price": 1, "age": 1}
    assert layout.equal_width(needed_by="dlrm") == 30


def test_given_widths_win_over_any_rule():
    for embedding_dim in (4, "rule", "average"):
        layout = InputLayout.plan(FEATURES, embedding_dim=embedding_dim, given={"hour": 3})
        assert layout["hour"].width == 3
        assert layout["hour"].start == layout["user"].stop
    assert widths(InputLayout.plan(FEATURES, embedding_dim=4, given={"hour": 3}))["user"] == 4


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["categorical", "multivalent", "numeric"]), st.integers(2, 10**6)), max_size=12),
    st.one_of(st.integers(1, 64), st.sampled_from(["rule", "average"])),
)
def test_slots_tile_x0_without_gaps(drawn, embedding_dim):
    features = [Feature(f"f{i}", kind, 0 if kind == "numeric" else size) for i, (kind, size) in enumerate(drawn)]
    layout = InputLayout.plan(features, embedding_dim=embedding_dim)
    assert sorted(layout.names) == sorted(feature.name for feature in features)
    assert [i for slot in layout.slots for i in range(slot.start, slot.stop)] == list(range(layout.input_dim))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"given": {"huor": 3}}, "Widths can be given to 'user', 'tags', 'hour'; got 'huor'. Did you mean 'hour'"),
        ({"given": {"age": 3}}, "got 'age'"),
        ({"given": {"hour": 0}}, "must be at least 1; got 0 for 'hour'"),
        ({"embedding_dim": 0}, "must be at least 1; got 0 for 'user'"),
    ],
)
def test_impossible_widths_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        InputLayout.plan(FEATURES, **options)


def test_unequal_widths_are_refused_with_a_way_out():
    with pytest.raises(ConfigError) as caught:
        InputLayout.plan(FEATURES, embedding_dim="rule").equal_width(needed_by="deepfm")
    assert caught.value.message == (
        "deepfm needs one embedding width for all features; got 12 for 'hour' and 60 for 'user'."
    )
    assert "'average'" in caught.value.hint
    with pytest.raises(ConfigError, match="deepfm needs at least one categorical or multivalent feature; got none"):
        InputLayout.plan(FEATURES[:1]).equal_width(needed_by="deepfm")
