"""Finding a known set's file in what the user points at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crossrank.errors import DataError, listing


def locate(path: Path | str, names: Sequence[str], publisher: str) -> Path:
    """The path itself, or the first of the names that its folder holds.

    Args:
        path: a file or a folder.
        names: what the publisher calls the file.
        publisher: where the set is offered, for the message.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} must be a file or folder; it does not exist.", hint=publisher)
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        raise DataError(f"{path} must be the file {listing(names)} itself; got an archive.", hint="Unpack it first.")
    if not path.is_dir():
        return path
    for name in names:
        if (path / name).is_file():
            return path / name
    raise DataError(f"The folder {path} must hold {' or '.join(map(repr, names))}; it does not.", hint=publisher)
