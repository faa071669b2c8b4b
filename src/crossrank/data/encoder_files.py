"""The two files of an encoder: ``encoder.json`` and ``vocabulary.safetensors``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossrank.data.cell_codes import CellCodes
from crossrank.data.rows import EncodedRows
from crossrank.data.scaling import NumericStatistics
from crossrank.data.vocabulary import from_tensors
from crossrank.errors import DataError
from crossrank.files import DAMAGED, read_json, write_tensors
from crossrank.schema import Numeric, Schema

if TYPE_CHECKING:
    from crossrank.data.encoder import Encoder

FORMAT_VERSION = 1


class _Features(TypedDict):
    features: list[dict[str, Any]]


class _Written(TypedDict):
    """encoder.json"""

    format_version: int
    schema: _Features
    numeric: dict[str, NumericStatistics]


def description(encoder: Encoder) -> str:
    """The content of encoder.json."""
    statistics = {name: dataclasses.asdict(value) for name, value in encoder.statistics.items()}
    content = {"format_version": FORMAT_VERSION, "schema": encoder.schema.to_dict(), "numeric": statistics}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def tensors(encoder: Encoder) -> dict[str, NDArray[Any]]:
    """The content of vocabulary.safetensors."""
    return {
        f"{name}.{part}": array
        for name, vocabulary in (*encoder.vocabularies.items(), *encoder.crosses.items())
        for part, array in vocabulary.tensors().items()
    }


def save_encoder(encoder: Encoder, folder: Path) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "encoder.json").write_text(description(encoder), encoding="utf-8")
    write_tensors(folder / "vocabulary.safetensors", save_file, tensors(encoder))


def load_encoder(kind: type[Encoder], folder: Path) -> Encoder:
    """Read what :func:`save_encoder` wrote; needs no polars."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = folder / "encoder.json"
    version = read_json(file, dict[str, Any], error=DataError).get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"The encoder in {folder} must have format version {FORMAT_VERSION}; got {version!r}.",
            hint="It was written by another version of crossrank.",
        )
    content = read_json(file, _Written, error=DataError)
    for column in content["schema"]["features"]:
        if column.get("kind") == Numeric.kind:
            column.setdefault("encoding", "scalar")  # there was nothing else
    schema = Schema.from_dict(content["schema"], source=str(file))
    names = [column.name for column in (*schema.categorical, *schema.multivalent)]
    try:
        parts: dict[str, dict[str, NDArray[Any]]] = {}
        for key, array in load_file(folder / "vocabulary.safetensors").items():
            name, _, part = key.rpartition(".")
            parts.setdefault(name, {})[part] = array
        statistics = {column.name: content["numeric"][column.name] for column in schema.numeric}
        encoder = kind(schema.with_crosses([]), {name: from_tensors(parts[name]) for name in names}, statistics)
        label, features = schema.label.kind, encoder.features
        crosses = [CellCodes.load(cross, features, label, parts[cross.name]) for cross in schema.crosses]
        encoder = kind(schema, encoder.vocabularies, statistics, crosses)
        ids, floats = encoder.number_slots(np.full((1, len(schema.numeric)), np.nan))
        missing = np.zeros((1, len(schema.categorical) + len(ids)), np.uint32)
        encoder.add_cells(EncodedRows(missing, floats, ()))  # what does not fit together shows here
        return encoder
    except KeyError as error:
        raise DataError(f"The encoder in {folder} must know every column; {error} is missing.", hint=DAMAGED) from None
    except (OSError, SafetensorError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise DataError(f"The encoder in {folder} cannot be read; {error}.", hint=DAMAGED) from None
