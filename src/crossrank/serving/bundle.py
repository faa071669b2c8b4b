"""A bundle: a model in another format with all that answers raw rows, without torch.

::

    bundle/
      manifest.json       format version, the run's fingerprint, precision, parity with the run, checksums
      schema.json         what each column means
      encoder/            turns a raw row into ids and numbers exactly as training did
      model.onnx          the graph: ids and numbers in, answers out
      model.onnx.data     its weights, which processes that serve the same bundle share in memory
      rows.json           a few raw rows, to warm up with
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from crossrank.data.encoder import Encoder
from crossrank.errors import BundleError
from crossrank.files import checksum, damage, read_json, write_json
from crossrank.shapes import FileName

FORMAT, FORMAT_VERSION = "crossrank bundle", 1
MANIFEST, GRAPH, ROWS = "manifest.json", "model.onnx", "rows.json"
EXPORT_AGAIN = "Copy it anew, or export the run again."


def is_bundle(path: Path) -> bool:
    """Whether a folder is a bundle; an encoded dataset has a manifest too."""
    return (path / MANIFEST).is_file() and (path / GRAPH).is_file()


class Bundle:
    """An exported model on disk."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> Bundle:
        """Open a bundle.

        Args:
            path: the folder.
            verify: compare the checksum of every file with the one that was written.

        Raises:
            BundleError: where it is absent, damaged, or from another format version.
        """
        path = Path(path)
        if not is_bundle(path):
            raise BundleError(
                f"{path} must be a bundle; it has no {MANIFEST} beside a {GRAPH}.",
                hint="Bundles are made by: crossrank export",
            )
        about = read_json(path / MANIFEST, dict[str, Any], error=BundleError, hint=EXPORT_AGAIN)
        found = about.get("format"), about.get("format_version")
        if found != (FORMAT, FORMAT_VERSION):
            raise BundleError(
                f"{path} must be a {FORMAT} of version {FORMAT_VERSION}; got {found[0]!r} of version {found[1]!r}.",
                hint="It was written by another version of crossrank: export the run again.",
            )
        bundle = cls(path, read_json(path / MANIFEST, _Written, error=BundleError, hint=EXPORT_AGAIN))
        if verify:
            bundle.verify()
        return bundle

    def verify(self) -> None:
        """Check that no file was damaged since it was written."""
        if found := damage(self.path, self.manifest["checksums"]):
            raise BundleError(f"The bundle {self.path} is damaged: {found}.", hint=EXPORT_AGAIN)

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder.load(self.path / "encoder")

    @property
    def graph(self) -> Path:
        return self.path / GRAPH

    @property
    def fingerprint(self) -> str:
        """That of the run."""
        return str(self.manifest["run"])

    @property
    def precision(self) -> str:
        return str(self.manifest["precision"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A few raw rows, to warm up with."""
        rows: list[dict[str, Any]] = read_json(
            self.path / ROWS, list[dict[str, Any]], error=BundleError, hint=EXPORT_AGAIN
        )
        return rows


class _Written(TypedDict):
    """manifest.json"""

    run: str
    precision: str
    checksums: dict[FileName, str]


def write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Write what makes a folder a bundle; it comes last."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {path.relative_to(folder).as_posix(): checksum(path) for path in files}
    write_json(folder / MANIFEST, {"format": FORMAT, "format_version": FORMAT_VERSION, **about, "checksums": checksums})
