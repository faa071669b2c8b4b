"""A bundle: a model in another format with all that answers raw rows, without torch.

::

    bundle/
      manifest.json       format version, the run's fingerprint, precision, parity with the run, checksums
      schema.json         what each column means
      encoder/            turns a raw row into ids and numbers exactly as training did
      model.onnx          the graph: ids and numbers in, answers out
      model.onnx.data     its weights, which processes that serve the same bundle share in memory
      rows.json           a few raw rows, to warm up with

A compiled bundle has ``model.pt2`` in place of the graph and its weights, and needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from crossrank.data.encoder import Encoder
from crossrank.errors import BundleError
from crossrank.files import Contents, checksum, is_as_written, read_json, signed, write_json
from crossrank.folders import MARK, is_marked, recover
from crossrank.shapes import FileName

FORMAT, FORMAT_VERSION = "crossrank bundle", 1
MANIFEST, GRAPH, COMPILED, ROWS = "manifest.json", "model.onnx", "model.pt2", "rows.json"
Read = TypeVar("Read")
EXPORT_AGAIN = "Copy it anew, or export the run again."


def is_bundle(path: Path) -> bool:
    """Whether a folder is a bundle; an encoded dataset has a manifest too."""
    has_model = (path / GRAPH).is_file() or is_compiled(path)
    return (path / MANIFEST).is_file() and has_model and not is_marked(path)


def is_compiled(path: Path) -> bool:
    """Whether the model of a bundle is compiled, and so runs by torch."""
    return (path / COMPILED).is_file()


class Bundle:
    """An exported model on disk."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        self._files = Contents(path, manifest.get("checksums", {}), BundleError, hint=EXPORT_AGAIN)

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
        recover(path)
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
        if not is_as_written(self.manifest):
            raise BundleError(f"{self.path} is damaged: {MANIFEST} is not what was written.", hint=EXPORT_AGAIN)
        self._files.verify()

    @cached_property
    def encoder(self) -> Encoder:
        return self._files.read("encoder", Encoder.load)

    def read_graph(self, read: Callable[[Path], Read]) -> Read:
        """What a function reads of the graph and its weights, or of the compiled model."""
        if is_compiled(self.path):
            return self._files.read(COMPILED, read)
        found = self._files.read(GRAPH, read)
        return self._files.read(f"{GRAPH}.data", lambda _: found)

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
        rows: list[dict[str, Any]] = self._files.read_json(ROWS, list[dict[str, Any]])
        return rows


class _Written(TypedDict):
    """manifest.json"""

    run: str
    precision: str
    checksums: dict[FileName, str]


def write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Write what makes a folder a bundle; it comes last."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARK)
    checksums = {path.relative_to(folder).as_posix(): checksum(path) for path in files}
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **about, "checksums": checksums}
    write_json(folder / MANIFEST, signed(content))
