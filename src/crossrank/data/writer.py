"""Writing an encoded dataset so that it is complete or absent."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from crossrank.data.arrays import ArrayWriter
from crossrank.data.dataset import FORMAT, FORMAT_VERSION, MANIFEST, is_dataset
from crossrank.data.encoder import Encoder
from crossrank.data.parallel import for_each
from crossrank.data.rows import LabeledRows
from crossrank.data.splits import SPLITS
from crossrank.data.vocabulary import HashedVocabulary
from crossrank.errors import DataError
from crossrank.files import checksum, checksum_of, signed, write_json, writing
from crossrank.folders import making, partial_of, publish, recover
from crossrank.schema import Feature, Schema


class DatasetWriter:
    """Writes under a temporary name beside the target; :meth:`finish` renames, leaving without it removes.

    Args:
        path: the folder to make.
        schema: what the columns mean.
        overwrite: replace an encoded dataset that is already there.

    Raises:
        DataError: where the target exists, or cannot be written, such as on a full disk.
    """

    def __init__(self, path: Path | str, schema: Schema, *, overwrite: bool = False) -> None:
        self.path, self.schema, self._overwrite = Path(path), schema, overwrite
        self.folder = partial_of(self.path.absolute())
        self._making = making(self.path.absolute(), DataError)
        self._splits: list[str] = []
        self._arrays: dict[str, ArrayWriter] = {}

    def __enter__(self) -> DatasetWriter:
        recover(self.path)
        self._check_target()
        self._making.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for array in self._arrays.values():
            with contextlib.suppress(OSError):  # what a full disk could not take is thrown away with the rest
                array.close()
        self._making.__exit__(None, None, None)

    def append(self, split: str, rows: LabeledRows) -> None:
        """Add rows to a split."""
        with writing(self.path, DataError):
            encoded = rows.encoded
            arrays = self._of_split(split, rows)
            named = {"categorical": encoded.categorical, "numeric": encoded.numeric, "labels": rows.labels}
            more = {"weights": rows.weights, "groups": rows.groups, "times": rows.times, "orders": encoded.orders}
            named |= {name: array for name, array in more.items() if array is not None}
            for_each(named, lambda name: arrays[name].append(named[name]), num_rows=len(rows))  # most of it is hashing
            for position, (ids, offsets) in enumerate(encoded.bags):
                before = arrays[f"{position}.bag_ids"].num_rows
                arrays[f"{position}.bag_offsets"].append(offsets[1:] + before)
                arrays[f"{position}.bag_ids"].append(ids)

    def _of_split(self, split: str, rows: LabeledRows) -> dict[str, ArrayWriter]:
        """The arrays of a split, begun when its first rows come."""
        kinds = _array_kinds(self.schema, rows)
        if split not in self._splits:
            self._splits.append(split)
            (self.folder / split).mkdir()
            for name, (dtype, row_shape) in kinds.items():
                array = ArrayWriter(self.folder / split / f"{name}.npy", dtype, row_shape)
                self._arrays[f"{split}/{name}.npy"] = array
                if name.endswith("bag_offsets"):
                    array.append(np.zeros(1, np.int64))
        return {name: self._arrays[f"{split}/{name}.npy"] for name in kinds}

    def finish(self, encoder: Encoder, about: Mapping[str, Any]) -> None:
        """Write the encoder and the manifest, with what else is to be known about the dataset, and rename."""
        with writing(self.path, DataError):
            encoder.save(self.folder / "encoder")
            files = {file.name: checksum(file) for file in sorted((self.folder / "encoder").iterdir())}
            num_rows = {split: self._arrays[f"{split}/labels.npy"].num_rows for split in self._splits}
            content = {
                "encoder": files,
                "arrays": {name: array.finish() for name, array in sorted(self._arrays.items())},
            }
            manifest = {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "fingerprint": checksum_of(content),
                "splits": {split: {"rows": num_rows[split]} for split in SPLITS if split in num_rows},
                **about,
                "features": [_describe(encoder, feature) for feature in encoder.features],
                **content,
            }
            write_json(self.folder / MANIFEST, signed(manifest))
            self._check_target()
            publish(self.folder, self.path)

    def _check_target(self) -> None:
        if not self.path.exists():
            return
        if not self._overwrite:
            raise DataError(
                f"{self.path} must not exist yet; it does.",
                hint="Choose another name, or pass --overwrite to replace it.",
            )
        if not is_dataset(self.path):
            raise DataError(
                f"Only an encoded dataset can be overwritten; {self.path} is something else.", hint="Pick another name."
            )


def _array_kinds(schema: Schema, rows: LabeledRows) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The arrays of a split: type, and shape of a row."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {
        "categorical": ("<u4", rows.encoded.categorical.shape[1:]),
        "numeric": ("<f4", rows.encoded.numeric.shape[1:]),
        "labels": ("<f4", rows.labels.shape[1:]),
    }
    for position in range(len(schema.multivalent)):
        kinds |= {f"{position}.bag_ids": ("<u4", ()), f"{position}.bag_offsets": ("<i8", ())}
    if schema.weight:
        kinds["weights"] = ("<f4", ())
    if schema.group:
        kinds["groups"] = ("<u4", ())
    if rows.times is not None:
        kinds["times"] = ("<u4", ())
    if rows.encoded.orders is not None:
        kinds["orders"] = ("<f4", rows.encoded.orders.shape[1:])
    return kinds


def _describe(encoder: Encoder, feature: Feature) -> dict[str, Any]:
    about: dict[str, Any] = {"name": feature.name}
    if feature.column != feature.name:
        about["column"] = feature.column
    if feature.kind == "numeric":
        return about if feature.width == 1 else {**about, "width": feature.width}
    about["vocab_size"] = feature.vocab_size
    vocabulary = encoder.vocabularies.get(feature.name)
    if isinstance(vocabulary, HashedVocabulary):
        about["expected_collisions"] = vocabulary.expected_collisions
    return about
