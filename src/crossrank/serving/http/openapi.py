"""The OpenAPI document of a server, made of the model's columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossrank import __version__
from crossrank.serving.http.bodies import MOST_EXPLAINED, MOST_K
from crossrank.serving.http.protocol import DTYPES, OUTPUT
from crossrank.serving.http.served import Served
from crossrank.serving.http.settings import ServeSettings

LARGEST = float(np.finfo(np.float32).max)
Json = dict[str, Any]


def document(model: Served, settings: ServeSettings) -> Json:
    """What may be asked, and what is answered."""
    named: list[Json] = [_in_path("name", model.name)]
    versioned = [*named, _in_path("version", model.version)]
    about = {"/v2/models/{name}": named, "/v2/models/{name}/versions/{version}": versioned}
    version = {"name": "version", "in": "query", "schema": {"type": "string", "enum": [model.version]}}
    paths: Json = {
        "/score": {"post": _call("The score of each row.", _ref("Scores"), body=_ref("Rows"), parameters=[version])},
        "/rank": {"post": _call("The best items for a context.", _ref("Ranking"), body=_ref("Request"))},
        "/model": {"get": _call("What answers here.", {"type": "object", "required": ["name", "version", "columns"]})},
        "/metrics": {"get": _call("Counters, for Prometheus.", kind="text/plain")},
        "/v2": {"get": _call("The server.", {"type": "object", "required": ["name", "version", "extensions"]})},
        "/v2/health/live": {"get": _call("Whether it is alive.")},
        "/v2/health/ready": {"get": _call("Whether it is ready.")},
    }
    for path, parameters in about.items():
        told = {"type": "object", "required": ["name", "versions", "inputs", "outputs"]}
        asked: Json = {"parameters": parameters}
        paths[path] = {"get": _call("The columns as tensors.", told, **asked)}
        paths[f"{path}/ready"] = {"get": _call("Whether the model is ready.", **asked)}
        infer = _call("Scores of tensors.", _ref("Inferred"), body=_ref("Tensors"), **asked)
        paths[f"{path}/infer"] = {"post": infer}
    found: Json = {
        "openapi": "3.1.0",
        "info": {"title": f"crossrank: {model.name}", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas(model, settings)},
    }
    if settings.token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _in_path(name: str, value: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "enum": [value]}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _call(
    summary: str,
    answer: Json | None = None,
    *,
    body: Json | None = None,
    parameters: list[Json] | None = None,
    kind: str = "",
) -> Json:
    """An operation; whatever goes wrong is an error with a message."""
    kind = kind or ("application/json" if answer else "")
    right: Json = {"description": "Done.", **({"content": {kind: {"schema": answer or {}}}} if kind else {})}
    wrong = {"description": "What was wrong.", "content": {"application/json": {"schema": _ref("Error")}}}
    call: Json = {"summary": summary, "responses": {"200": right, "default": wrong}}
    if body is not None:
        call["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if parameters:
        call["parameters"] = parameters
    return call


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _schemas(model: Served, settings: ServeSettings) -> Json:
    columns = {column.input: _column(column.kind) for column in model.schema.in_table}
    score: Json = {"type": "number"}
    scores = {"type": "array", "items": score} if model.schema.label.num_outputs > 1 else score
    id_: Json = {"type": ["string", "integer"]}
    item = {"oneOf": [id_, _ref("Columns")]} if model.ranker else _ref("Columns")
    tensor = {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 2},
        "datatype": {"enum": ["BYTES", *DTYPES]},
        "data": {"type": "array"},
    }
    ranked = {"id": id_, "index": {"type": "integer"}, "score": score, "reasons": {"type": "object"}}
    request = {
        "context": {"type": "object", "description": "a value for each column of the context"},
        "items": {
            "type": ["array", "null"] if model.ranker else "array",
            "items": item,
            "description": f"at most {settings.max_rows:,}",
        },
        "k": {"type": "integer", "minimum": 1, "maximum": MOST_K, "default": 20},
        "exclude": {"type": "array", "items": id_},
        "explain": {"type": "boolean", "description": f"for up to {MOST_EXPLAINED} items"},
    }
    rows = {"type": "array", "items": _ref("Row"), "description": f"at most {settings.max_rows:,}"}
    return {
        "Row": _object(columns, *columns),
        "Columns": _object(columns),
        "Rows": {"anyOf": [_object({"rows": rows}, "rows"), _ref("Row")]},
        "Scores": _object({"scores": {"type": "array", "items": scores}, "model": {"type": "string"}}, "scores"),
        "Request": _object(request, *([] if model.ranker else ["items"])),
        "Ranking": _object({"items": {"type": "array", "items": _object(ranked, "score")}}, "items", "model"),
        "Tensors": _object({"inputs": {"type": "array", "items": _object(tensor, *tensor)}}, "inputs"),
        "Inferred": _object({"outputs": {"type": "array", "items": _object({"name": {"const": OUTPUT}})}}, "outputs"),
        "Error": _object({"error": {"type": "string"}, "hint": {"type": "string"}}, "error"),
    }


def _column(kind: str) -> Json:
    number = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
    if kind == "numeric":
        text = {"type": "string", "pattern": "^([+-]?[0-9]{1,9})?$", "description": "any number as text"}
        return {"anyOf": [number, {"type": ["boolean", "null"]}, text]}
    values = {"type": ["string", "number", "boolean", "null"]}
    return {"anyOf": [values, {"type": "array", "items": values}]} if kind == "multivalent" else values
