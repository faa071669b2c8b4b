"""Writes what makes a folder a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from crossrank.data import Encoder
from crossrank.files import checksum, signed, write_json, write_tensors
from crossrank.models import Model
from crossrank.runs.origin import origin
from crossrank.runs.run import CALIBRATION, FORMAT_VERSION, WEIGHTS

RECORDS = (
    "metrics.jsonl",
    "report.json",
    "crosses.json",
    "spectrum.json",
    "curves.json",
    "importance.json",
    CALIBRATION,
)


def write_run(
    folder: Path,
    *,
    model: Model,
    encoder: Encoder,
    config: dict[str, Any],
    info: dict[str, Any],
    report: dict[str, Any],
) -> None:
    """Write what makes a folder a run; run.json comes last, so that an unfinished folder is never taken for a run."""
    write_json(folder / "config.json", config)
    encoder.schema.save(folder / "schema.json")
    encoder.save(folder / "encoder")
    write_tensors(folder / WEIGHTS, save_file, _separate(model.state_dict()))
    write_json(folder / "report.json", report)
    files = [
        "config.json",
        "schema.json",
        WEIGHTS,
        *(f"encoder/{p.name}" for p in sorted((folder / "encoder").iterdir())),
    ]
    sums = {
        "checksums": {name: checksum(folder / name) for name in files},
        "records": {name: checksum(folder / name) for name in RECORDS if (folder / name).is_file()},
    }
    write_json(folder / "run.json", signed({"format_version": FORMAT_VERSION, **origin(), **info, **sums}))


def _separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own, also where a model of somebody's own uses one under two names."""
    seen: set[int] = set()
    result = {}
    for name, tensor in weights.items():
        place = tensor.untyped_storage().data_ptr()
        result[name] = (tensor.clone() if place in seen else tensor).contiguous().cpu()
        seen.add(place)
    return result
