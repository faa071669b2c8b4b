"""Whether encoded rows can be computed with: a checksum says that nothing changed, not that it was right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from crossrank.data.rows import LabeledRows
from crossrank.errors import DataError
from crossrank.schema import Feature, Label
from crossrank.schema.label import MAX_GRADE

BLOCK_BYTES = 1 << 22  # looked at a time


def check_rows(rows: LabeledRows, features: Sequence[Feature], label: Label, *, num_rows: int, where: str) -> None:
    """Refuse rows of another shape than their features, ids that no table has, and numbers that are none.

    Args:
        rows: of a split.
        features: what the encoder makes.
        label: of the schema.
        num_rows: as the manifest counts them.
        where: whose rows they are, for messages.

    Raises:
        DataError: for the first array that is wrong.
    """
    sizes = {kind: [one.vocab_size for one in features if one.kind == kind] for kind in ("categorical", "multivalent")}
    width, encoded = sum(one.width for one in features if one.kind == "numeric"), rows.encoded
    arrays = {"labels": rows.labels, "weights": rows.weights, "groups": rows.groups, "times": rows.times}
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    shapes |= {name: (array.shape, (num_rows,)) for name, array in arrays.items() if array is not None}
    if label.kind == "tasks":
        shapes["labels"] = (rows.labels.shape, (num_rows, len(label.columns)))
    shapes |= {
        "categorical": (encoded.categorical.shape, (num_rows, len(sizes["categorical"]))),
        "numeric": (encoded.numeric.shape, (num_rows, width)),
    }
    shapes |= {f"{i}.bag_offsets": (offsets.shape, (num_rows + 1,)) for i, (_, offsets) in enumerate(encoded.bags)}
    if encoded.orders is not None:
        shapes["orders"] = (encoded.orders.shape[::2], (num_rows, min(encoded.orders.shape[-1], width)))
    for name, (found, expected) in shapes.items():
        if found != expected:
            raise _wrong(f"{name}.npy of {where} must have the shape {expected}; got {found}.")
    _check_ids(encoded.categorical, np.array(sizes["categorical"], np.uint32), f"categorical.npy of {where}")
    for i, ((ids, offsets), size) in enumerate(zip(encoded.bags, sizes["multivalent"], strict=True)):
        _check_ids(ids[:, None], np.array([size], np.uint32), f"{i}.bag_ids.npy of {where}")
        if offsets[0] != 0 or offsets[-1] != len(ids) or any((np.diff(block) < 0).any() for block in _blocks(offsets)):
            raise _wrong(f"{i}.bag_offsets.npy of {where} must rise from 0 to {len(ids):,}; it does not.")
    for name, floats in {**arrays, "numeric": encoded.numeric, "orders": encoded.orders}.items():
        if floats is not None and floats.dtype.kind == "f":
            least = -np.inf if name in ("numeric", "orders") or (name == "labels" and label.kind == "real") else 0
            highest = {"real": np.inf, "grade": MAX_GRADE}.get(label.kind, max(len(label.classes) - 1, 1))
            most = np.inf if name != "labels" else highest
            for block in _blocks(floats):
                if name == "labels" and label.kind == "tasks":
                    block = block[~np.isnan(block)]  # of those that are not known
                if not np.isfinite(block).all() or block.min(initial=0) < least or block.max(initial=0) > most:
                    raise _wrong(f"{name}.npy of {where} must hold finite numbers from {least} to {most}; it does not.")


def _check_ids(ids: NDArray[np.uint32], sizes: NDArray[np.uint32], where: str) -> None:
    for block in _blocks(ids):
        found = block.max(axis=0, initial=0)
        if (found >= sizes).any():
            place = int((found >= sizes).argmax())
            raise _wrong(f"{where} must hold ids below {sizes[place]:,} in column {place}; got {found[place]:,}.")


def _blocks(array: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
    """Rows that overlap by one, so that neighbours can be compared."""
    step = max(BLOCK_BYTES * max(len(array), 1) // max(array.nbytes, 1), 1)
    for start in range(0, len(array), step):
        yield array[start : start + step + 1]


def _wrong(problem: str) -> DataError:
    return DataError(problem, hint="It was not written by crossrank, or is damaged: prepare the dataset again.")
