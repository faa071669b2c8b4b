"""An encoded dataset: a folder of memory-mapped arrays, complete or absent.

```
manifest.json                     format version, row counts, schema, checksums
encoder/                          what encodes a raw row the same way
train/  valid/  test/             categorical.npy  numeric.npy  labels.npy  [weights.npy  groups.npy  times.npy]
                                  0.bag_ids.npy  0.bag_offsets.npy, 1. … for each multivalent column
train/                            orders.npy, where crosses have statistics: their numbers in further orders of the rows
```
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from crossrank.data.arrays import map_array
from crossrank.data.encoder import Encoder
from crossrank.data.rows import EncodedRows, LabeledRows
from crossrank.data.soundness import check_rows
from crossrank.data.split_rows import Split
from crossrank.data.splits import SPLITS
from crossrank.data.table import Table, open_table
from crossrank.data.verification import AGAIN, Verification
from crossrank.errors import DataError, did_you_mean, listing
from crossrank.files import Contents, is_as_written, read_json
from crossrank.folders import is_marked, recover
from crossrank.schema import Feature, Schema
from crossrank.shapes import FileName

FORMAT = "crossrank dataset"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
PREPARE_AGAIN = "It is damaged: prepare the dataset again."


class EncodedDataset:
    """An encoded dataset on disk, larger than memory if need be."""

    def __init__(self, path: Path, manifest: dict[str, Any], encoder: Encoder) -> None:
        self.path, self.manifest, self.encoder = path, manifest, encoder
        abouts = manifest["arrays"].items()
        self._arrays = {name: map_array(path / name, about["dtype"], about["shape"]) for name, about in abouts}
        self._verification = Verification(path, self._arrays, {name: about["checksum"] for name, about in abouts})
        self._sound: set[str] = set()  # splits whose rows were looked at

    @classmethod
    def open(cls, path: Path | str) -> EncodedDataset:
        """Open a dataset folder. All but the arrays is compared with its checksums now, the rows of a split when they
        are first read.

        Raises:
            DataError: where it is missing, from another format version, or damaged.
        """
        path = Path(path)
        recover(path)
        manifest = _read_manifest(path)
        checksums = {f"encoder/{name}": expected for name, expected in manifest["encoder"].items()}
        files = Contents(path, checksums, DataError, hint=AGAIN)
        files.verify()
        return cls(path, manifest, files.read("encoder", Encoder.load))

    @property
    def schema(self) -> Schema:
        return self.encoder.schema

    @property
    def features(self) -> tuple[Feature, ...]:
        return self.encoder.features

    @property
    def num_rows(self) -> dict[str, int]:
        """Rows by split."""
        return {split: about["rows"] for split, about in self.manifest["splits"].items()}

    @property
    def fingerprint(self) -> str:
        """Equal for equal content."""
        return str(self.manifest["fingerprint"])

    def split(self, name: str) -> Split:
        """One of the splits.

        Raises:
            DataError: where there is none of this name, or it has no rows.
        """
        present = list(self.num_rows)
        if name not in present:
            hint = did_you_mean(name, present) if name not in SPLITS else "Prepare it with other fractions."
            raise DataError(f"The dataset {self.path} has rows for {listing(present)}; got '{name}'.", hint=hint)
        if not self._verification.in_background:
            self._verification.check(key for key in self._arrays if key.startswith(f"{name}/"))
        bags = []
        for position in range(len(self.schema.multivalent)):
            bags.append((self._array(name, f"{position}.bag_ids"), self._array(name, f"{position}.bag_offsets")))
        given = {key: self._array(name, key) for key in ("orders", "times") if self._has(name, key)}
        orders = given.get("orders")
        rows = EncodedRows(self._array(name, "categorical"), self._array(name, "numeric"), tuple(bags), orders)
        weights = self._array(name, "weights") if self.schema.weight else None
        groups = self._array(name, "groups") if self.schema.group else None
        labels, kept = self._array(name, "labels"), self.schema.label.negatives_kept
        if kept is not None and name != "train":  # rows that are measured: a negative one stands for 1 / kept
            each = np.where(labels == 0, np.float32(1 / kept), np.float32(1))
            weights = each if weights is None else each * weights
        labeled = LabeledRows(rows, labels, weights, groups, given.get("times"))
        if name not in self._sound:
            count, where = self.num_rows[name], f"{self.path / name}"
            check_rows(labeled, self.features, self.schema.label, num_rows=count, where=where)
            self._sound.add(name)
        return Split(labeled)

    def _has(self, split: str, name: str) -> bool:
        return f"{split}/{name}.npy" in self._arrays

    def _array(self, split: str, name: str) -> Any:
        key = f"{split}/{name}.npy"
        if key not in self._arrays:
            raise DataError(f"{self.path / MANIFEST} must know {key}; it does not.", hint=PREPARE_AGAIN)
        return self._arrays[key]

    @cached_property
    def train(self) -> Split:
        return self.split("train")

    @cached_property
    def valid(self) -> Split:
        return self.split("valid")

    @cached_property
    def test(self) -> Split:
        return self.split("test")

    def verify(self) -> None:
        """Compare every array that was not read yet with its checksum.

        Raises:
            DataError: for the first one that differs.
        """
        self._verification.check()

    def verifying(self) -> contextlib.AbstractContextManager[None]:
        """Compare the arrays meanwhile, in a thread; :meth:`verify` waits for it."""
        return self._verification.beside()


def is_dataset(path: Path) -> bool:
    """Whether a folder is an encoded dataset."""
    return (path / MANIFEST).is_file() and not is_marked(path)


def open_data(source: Any, **table_options: Any) -> EncodedDataset | Table:
    """What rows a source has: an encoded dataset, or the folder of one, or else a raw table.

    Args:
        source: an encoded dataset or its folder, or whatever :func:`~crossrank.data.table.open_table` opens.
        table_options: what ``open_table`` takes; they say nothing about an encoded dataset.
    """
    if isinstance(source, EncodedDataset):
        return source
    if isinstance(source, str | Path):
        recover(Path(source))
        if is_dataset(Path(source)):
            return EncodedDataset.open(source)
    return open_table(source, **table_options)


def _read_manifest(path: Path) -> dict[str, Any]:
    if not (path / MANIFEST).is_file():
        got = "a file" if path.is_file() else "a folder without manifest.json" if path.is_dir() else "no such folder"
        table = path if path.is_file() else "TABLE"
        hint = f"Make one with: crossrank prepare {table} --into data/{path.stem}"
        raise DataError(f"{path} must be an encoded dataset; got {got}.", hint=hint)
    about = read_json(path / MANIFEST, dict[str, Any], error=DataError, hint=PREPARE_AGAIN)
    if about.get("format") != FORMAT:
        raise DataError(f"{path} must be an encoded dataset; its manifest.json says otherwise.")
    if about.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"The dataset {path} must have format version {FORMAT_VERSION}; got {about.get('format_version')!r}.",
            hint="It was written by another version of crossrank; prepare it again.",
        )
    manifest: dict[str, Any] = read_json(path / MANIFEST, _Written, error=DataError, hint=PREPARE_AGAIN)
    if not is_as_written(manifest):
        raise DataError(f"{path} is damaged: {MANIFEST} is not what was written.", hint=AGAIN)
    return manifest


class _Rows(TypedDict):
    rows: int


class _Array(TypedDict):
    dtype: Literal["<u4", "<f4", "<i8"]
    shape: list[int]
    checksum: str


class _Written(TypedDict):
    """manifest.json"""

    splits: dict[str, _Rows]
    arrays: dict[FileName, _Array]
    encoder: dict[FileName, str]
    fingerprint: str
    split: NotRequired[dict[str, Any]]
