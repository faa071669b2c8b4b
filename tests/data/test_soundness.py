"""Arrays, vocabularies and schemas that fit together, or are refused by name: what a checksum does not say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from crossrank.data.cell_codes import CellKeys
from crossrank.data.rows import EncodedRows, LabeledRows
from crossrank.data.soundness import BLOCK_BYTES, check_rows
from crossrank.data.vocabulary import HashedVocabulary, Vocabulary, from_tensors
from crossrank.errors import DataError, SchemaError
from crossrank.schema import Categorical, Cross, Feature, Label, Schema
from crossrank.schema.label import MAX_GRADE

FEATURES = [
    *(Feature("user", "categorical", 3), Feature("item", "categorical", 5)),
    *(Feature("tags", "multivalent", 4), Feature("age", "numeric", 0)),
]


def rows(label: Label, **changes) -> LabeledRows:
    """Two good rows, less what is changed."""
    arrays = {
        "categorical": np.array([[2, 4], [0, 0]], np.uint32),
        "numeric": np.array([[-7.5], [0.0]], np.float32),
        "bag_ids": np.array([3, 0, 1], np.uint32),
        "bag_offsets": np.array([0, 1, 3]),
        "orders": None,
        "labels": np.ones((2, 2) if label.kind == "tasks" else 2, np.float32),
        "weights": np.array([0, 2.5], np.float32),
        "groups": np.array([1, 1], np.uint32),
    } | {name: None if value is None else np.asarray(value) for name, value in changes.items()}
    encoded = EncodedRows(
        *(arrays["categorical"], arrays["numeric"], ((arrays["bag_ids"], arrays["bag_offsets"]),), arrays["orders"])
    )
    return LabeledRows(encoded, *(arrays[name] for name in ("labels", "weights", "groups")))


BINARY = Label(name="click")


def check(label: Label = BINARY, **changes) -> None:
    check_rows(rows(label, **changes), FEATURES, label, num_rows=2, where="train of here")


@pytest.mark.parametrize(
    ("label", "good"),
    [
        (BINARY, [0, 1]),
        (Label(name="price", kind="real"), [-5.5, 1e9]),
        (Label(name="stars", kind="grade"), [0, MAX_GRADE]),
        (Label(name="kind", kind="classes", classes=("a", "b", "c")), [0, 2]),
        (Label(columns=("click", "like")), [[0, 1], [np.nan, 1]]),
    ],
)
def test_rows_that_fit_are_taken_and_labels_beyond_their_kind_are_not(label, good) -> None:
    labels = np.array(good, np.float32)
    check(label, labels=labels, weights=None, groups=None)
    for wrong in (np.inf, -np.inf, *([] if label.kind == "real" else [labels[~np.isnan(labels)].max() + 1, -1])):
        with pytest.raises(DataError, match=r"labels\.npy of train of here must hold finite numbers from"):
            check(label, labels=np.where(labels == labels.flat[0], np.float32(wrong), labels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [1.0]}, r"labels.npy of train of here must have the shape \(2,\); got \(1,\)"),
        ({"groups": [1, 1, 1]}, r"groups.npy .* the shape \(2,\); got \(3,\)"),
        ({"categorical": [[0], [0]]}, r"categorical.npy .* the shape \(2, 2\); got \(2, 1\)"),
        ({"numeric": [[0, 0], [0, 0]]}, r"numeric.npy .* the shape \(2, 1\); got \(2, 2\)"),
        ({"orders": np.zeros((3, 4, 1))}, r"orders.npy .* the shape \(2, 1\); got \(3, 1\)"),
        ({"bag_offsets": [0, 3]}, r"0.bag_offsets.npy .* the shape \(3,\); got \(2,\)"),
        ({"bag_offsets": [0, 1, 2]}, "0.bag_offsets.npy .* must rise from 0 to 3"),
        ({"bag_offsets": [1, 1, 3]}, "0.bag_offsets.npy .* must rise from 0 to 3"),
        ({"bag_offsets": [0, 4, 3]}, "0.bag_offsets.npy .* must rise from 0 to 3"),
        ({"bag_ids": [3, 0, 4]}, "0.bag_ids.npy .* must hold ids below 4 in column 0; got 4"),
        ({"categorical": [[2, 4], [0, 5]]}, "categorical.npy .* must hold ids below 5 in column 1; got 5"),
        ({"numeric": [[np.nan], [0]]}, "numeric.npy .* must hold finite numbers"),
        ({"orders": np.full((2, 4, 1), np.inf)}, "orders.npy .* must hold finite numbers"),
        ({"weights": [-0.5, 1]}, "weights.npy .* must hold finite numbers from 0 to inf"),
    ],
)
def test_an_array_that_does_not_fit_is_named(changes, message) -> None:
    with pytest.raises(DataError, match=message):
        check(**changes)


def test_offsets_are_compared_across_the_blocks_that_are_looked_at() -> None:
    most = BLOCK_BYTES // 8
    offsets = np.arange(2 * most + 1)
    offsets[most - 1 : most + 1] = [most, most - 1]  # the second is the first of a block
    encoded = EncodedRows(
        *(np.zeros((2 * most, 0), kind) for kind in (np.uint32, np.float32)),
        ((np.zeros(2 * most, np.uint32), offsets),),
    )
    labels = np.zeros(2 * most, np.float32)
    with pytest.raises(DataError, match="must rise"):
        check_rows(LabeledRows(encoded, labels), FEATURES[2:3], BINARY, num_rows=2 * most, where="train")


TENSORS = {"letters": np.frombuffer("añb".encode(), np.uint8), "ends": np.array([1, 3, 4]), "counts": np.arange(5)}


def test_a_vocabulary_comes_back_from_its_arrays() -> None:
    vocabulary = from_tensors(TENSORS)
    assert isinstance(vocabulary, Vocabulary) and vocabulary.texts == ["a", "ñ", "b"]
    hashed = from_tensors({"counts": np.arange(5)})
    assert isinstance(hashed, HashedVocabulary) and hashed.hash_size == 3 and hashed.text_of(4) == "<hash 2>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": np.array([0, 1, -1, 1, 1])}, "each id must have a count"),
        ({"counts": np.array([0])}, "each id must have a count"),
        ({"counts": np.arange(4)}, "each value must have a text and a count"),
        ({"counts": np.ones(5)}, "whole numbers in a row belong here; got float64"),
        ({"counts": np.ones((5, 1), int)}, r"whole numbers in a row belong here; got int64 of shape \(5, 1\)"),
        ({"ends": np.array([1, 3, 3])}, "texts must follow each other"),
        ({"ends": np.array([3, 1, 4])}, "texts must follow each other"),
        ({"ends": np.array([1, 2, 4])}, "texts must be whole characters"),
        ({"letters": np.array([97, 255, 98, 98], np.uint8)}, "utf-8"),
    ],
)
def test_arrays_that_are_no_vocabulary_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        from_tensors(TENSORS | changes)
    with pytest.raises(ValueError, match="each id must have a count"):
        from_tensors({"counts": np.arange(2)})


def test_a_hashed_vocabulary_of_one_id_expects_every_value_to_collide_and_one_of_none_expects_nothing() -> None:
    assert HashedVocabulary(np.array([0, 0, 9])).expected_collisions == 1.0
    assert HashedVocabulary(np.array([3, 0, 0, 0])).expected_collisions == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cross(of=()), "A cross is of different columns, at least one; got"),
        (lambda: Cross(of=("a", "a")), "A cross is of different columns"),
        (lambda: Cross(of=("a",), statistics=False), "must have ids or statistics; got neither"),
        (lambda: Cross(of=("a", "b"), min_count=0), "min_count of the cross of 'a', 'b' must be at least 1"),
        (lambda: Schema([], BINARY), "A schema needs at least one feature"),
        (lambda: Schema([Categorical(name="a"), Categorical(name="a")], BINARY), "'a' has 2"),
        (lambda: Schema([Categorical(name="a"), Cross(of=("b",))], BINARY), "one value in each row, 'a'; got 'b'"),
        (lambda: Schema.from_dict([]), "the schema must be an object with a 'label' and 'features'"),
        (lambda: Schema.from_dict({"format_version": 99}), "the schema must have format version 1; got 99"),
        (
            lambda: Schema(
                [Categorical(name="a"), Cross(of=("a",))], Label(name="k", kind="classes", classes=("x", "y", "z"))
            ),
            "Statistics, as of .*, are of a binary label or a number; got several classes",
        ),
        (
            lambda: CellKeys.of("ab", [Feature(name, "categorical", 2**32) for name in "ab"]),
            r"fewer than 2\^64 possible cells; 'a', 'b' have 1\.8e\+19",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(make, message) -> None:
    with pytest.raises(SchemaError, match=message):
        make()


def test_the_largest_cross_that_has_keys_gives_its_ids_back() -> None:
    cells = CellKeys.of("ab", [Feature("a", "categorical", 2**32), Feature("b", "categorical", 2**32 - 1)])
    ids = np.array([[2**32 - 1, 2**32 - 2], [0, 5]], np.uint32)
    np.testing.assert_array_equal(cells.ids(cells.keys(ids)), ids)
    assert dataclasses.astuple(cells) == ((0, 1), (2**32, 2**32 - 1))
