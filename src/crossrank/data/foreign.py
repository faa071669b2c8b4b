"""Files that are no tables which can be read here, told apart by how they begin or are called."""

from __future__ import annotations

from pathlib import Path

from crossrank.data.lines import unreadable
from crossrank.errors import DataError

STARTS = {
    b"PK\x03\x04": "zip",
    b"ARROW1\0\0": "feather",
    b"\x89HDF": "hdf5",
    b"SQLite format 3": "sqlite",
    b"\x93NUMPY": "npy",
    b"\xfd7zXZ": "xz",
    b"\xd0\xcf\x11\xe0": "xls",
}
SUFFIXES = {"json", "jsonl", "ndjson", "pkl", "pickle", "xlsx", "ods", "feather", "arrow", "npz", "orc", "avro", "bz2"}
PACKED = {"zip", "bz2", "xz"}


def check_format(path: Path) -> None:
    """Refuse a file of another format.

    Raises:
        DataError: which says what the file is.
    """
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise unreadable(path, error) from None
    suffix = path.suffix.lower().removeprefix(".")
    found = (
        suffix if suffix in SUFFIXES else next((kind for word, kind in STARTS.items() if start.startswith(word)), "")
    )
    if found:
        hint = "Unpack it first." if found in PACKED else "Write it as parquet or csv first; pandas and polars can."
        raise DataError(f"{path.name} must be csv, tsv, text (also .gz or .zst) or parquet; got {found}.", hint=hint)
