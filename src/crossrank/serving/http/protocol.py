"""The Open Inference Protocol v2: a tensor for each column in, the tensor ``score`` out.

A column is a tensor of shape (N,) or (N, 1): BYTES for texts, any integer, float or BOOL type for numbers. A missing
value is an empty text or NaN; the values of a multivalent cell are one text, with the schema's separator between them.
Tensors come as JSON, or as bytes after the JSON (the extension ``binary_tensor_data``: ``binary_data_size`` for each
tensor, ``Inference-Header-Content-Length`` for the JSON's own size), which is how tritonclient sends them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from crossrank.serving.http.bodies import SCALARS, RefusedError, json_of, kind_of
from crossrank.serving.http.served import Row, Scores, Served

OUTPUT = "score"
HEADER = "Inference-Header-Content-Length"
INTEGERS = {f"{sign}INT{8 * size}": f"<{kind}{size}" for sign, kind in (("", "i"), ("U", "u")) for size in (1, 2, 4, 8)}
DTYPES = {**INTEGERS, "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BOOL": "?"}
MOST_TENSORS = 1000


def metadata(name: str, model: Served, versions: Sequence[str]) -> dict[str, Any]:
    """What a model takes and gives."""
    numeric = {column.input for column in model.schema.in_table if column.kind == "numeric"}
    inputs = [
        {"name": column, "datatype": "FP64" if column in numeric else "BYTES", "shape": [-1]} for column in model.inputs
    ]
    count = model.schema.label.num_outputs
    output = {"name": OUTPUT, "datatype": "FP32", "shape": [-1, count] if count > 1 else [-1]}
    return {
        "name": name,
        "versions": list(versions),
        "platform": "crossrank",
        "inputs": inputs,
        "outputs": [output],
    }


def read_inference(body: bytes, header: str | None, model: Served, most: int) -> tuple[list[Row], dict[str, Any]]:
    """The rows of an inference request, and its JSON."""
    view = memoryview(body)
    if header is not None and (not header.isdecimal() or len(header) > 15 or int(header) > len(body)):
        raise RefusedError(400, f"{HEADER} must be the size of the JSON in front of the tensors.")
    split = len(body) if header is None else int(header)
    content, binary = json_of(view[:split]), view[split:]
    tensors = content.get("inputs")
    if not isinstance(tensors, list) or len(tensors) > MOST_TENSORS:
        raise RefusedError(400, f"inputs must be an array of tensors; got {kind_of(tensors)}.")
    columns: dict[str, list[Any]] = {}
    for place, tensor in enumerate(tensors):
        name, shape, values, used = _read_tensor(tensor, f"inputs[{place}]", binary, most)
        binary = binary[used:]
        if name in model.inputs:
            columns[name] = values
        if len(columns) and shape != len(next(iter(columns.values()))):
            raise RefusedError(400, f"inputs[{place}] ('{name[:100]}') must have as many rows as the others.")
    for name in model.inputs:
        if name not in columns:
            raise RefusedError(400, f"inputs must have a tensor for each column; '{name}' is missing.")
    if len(binary):
        raise RefusedError(400, f"The body must end with the last tensor; got {len(binary):,} bytes more.")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], content


def _read_tensor(tensor: Any, where: str, binary: memoryview, most: int) -> tuple[str, int, list[Any], int]:
    """The name, rows and values of a tensor, and how many bytes of the binary part are its."""
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise RefusedError(400, f"{where} must be an object with a name.")
    where = f"{where} ('{tensor['name'][:100]}')"
    shape, datatype = tensor.get("shape"), tensor.get("datatype")
    right = isinstance(shape, list) and len(shape) in (1, 2) and shape[1:] in ([], [1])
    if not isinstance(shape, list) or not right or type(shape[0]) is not int or shape[0] < 0:
        raise RefusedError(400, f"{where}: shape must be [N] or [N, 1].")
    rows = shape[0]
    if rows > most:
        raise RefusedError(413, f"A request must have at most {most:,} rows; got {rows:,}.")
    if not isinstance(datatype, str) or (datatype != "BYTES" and datatype not in DTYPES):
        raise RefusedError(400, f"{where}: datatype must be BYTES, {', '.join(DTYPES)}.")
    parameters = tensor.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        values = _flat(tensor.get("data"), where)
        size = 0
    elif type(size) is not int or not 0 <= size <= len(binary):
        raise RefusedError(400, f"{where}: binary_data_size must be at most what follows the JSON.")
    elif datatype == "BYTES":
        values = _texts(binary[:size], where)
    else:
        width = np.dtype(DTYPES[datatype]).itemsize
        if size != rows * width:
            raise RefusedError(400, f"{where}: {rows:,} values of {datatype} are {rows * width:,} bytes; got {size:,}.")
        values = np.frombuffer(binary[:size], DTYPES[datatype]).tolist()
    if len(values) != rows:
        raise RefusedError(400, f"{where} must have {rows:,} values, as its shape says; got {len(values):,}.")
    return tensor["name"], rows, values, size


def _flat(data: Any, where: str) -> list[Any]:
    """Values of a JSON tensor, which may be nested as its shape is."""
    if not isinstance(data, list):
        raise RefusedError(400, f"{where}: data must be an array; got {kind_of(data)}.")
    values = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in data]
    if not all(type(one) in SCALARS for one in values):
        raise RefusedError(400, f"{where}: data must hold plain values.")
    return values


def _texts(data: memoryview, where: str) -> list[str]:
    """Each text stands after its size in four bytes."""
    texts, start = [], 0
    try:
        while start < len(data):
            (size,) = struct.unpack_from("<I", data, start)
            start += 4 + size
            if start > len(data):
                raise ValueError
            texts.append(str(data[start - size : start], "utf-8"))
    except (struct.error, ValueError):
        raise RefusedError(400, f"{where} must hold texts in UTF-8, each after its size in four bytes.") from None
    return texts


def write_inference(name: str, version: str, content: dict[str, Any], scores: Scores) -> tuple[bytes, dict[str, str]]:
    """The answer's body and headers: the scores as JSON, or as bytes where the request asks for them."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": list(scores.shape)}
    answer = {"model_name": name, "model_version": version, "outputs": [output]}
    if isinstance(content.get("id"), str) and content["id"]:
        answer["id"] = content["id"]
    if not _wants_bytes(content):
        output["data"] = scores.ravel().tolist()
        return orjson.dumps(answer), {"content-type": "application/json"}
    data = scores.astype("<f4").tobytes()
    output["parameters"] = {"binary_data_size": len(data)}
    head = orjson.dumps(answer)
    return head + data, {"content-type": "application/octet-stream", HEADER: str(len(head))}


def _wants_bytes(content: dict[str, Any]) -> bool:
    asked = content.get("outputs")
    if asked is None:
        return _parameter(content, "binary_data_output")
    if (
        not isinstance(asked, list)
        or len(asked) != 1
        or not isinstance(asked[0], dict)
        or asked[0].get("name") != OUTPUT
    ):
        raise RefusedError(400, f"outputs must be left out, or ask for the one there is, '{OUTPUT}'.")
    return _parameter(asked[0], "binary_data") or _parameter(content, "binary_data_output")


def _parameter(content: dict[str, Any], name: str) -> bool:
    parameters = content.get("parameters")
    return isinstance(parameters, dict) and parameters.get(name) is True
