"""The Open Inference Protocol v2, asked as tritonclient asks: its bytes are written here by hand."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

MODEL = "/v2/models/small"


def tensor(name: str, values: list, datatype: str) -> tuple[dict, bytes]:
    """A tensor as tritonclient's ``InferInput.set_data_from_numpy(..., binary_data=True)`` writes it."""
    if datatype == "BYTES":
        texts = [str("" if value is None else value).encode() for value in values]
        data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        data = np.array([np.nan if value is None else value for value in values], "<f8").tobytes()
    about = {"name": name, "shape": [len(values)], "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
    return about, data


def binary_request(client, rows: list[dict], **more) -> dict:
    """The body and header of a request with binary tensors."""
    kinds = {one["name"]: one["datatype"] for one in client.get(MODEL).json()["inputs"]}
    parts = [tensor(name, [row[name] for row in rows], kind) for name, kind in kinds.items()]
    head = json.dumps({"id": "", "inputs": [about for about, _ in parts], **more}, separators=(",", ":")).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return {"content": head + b"".join(data for _, data in parts), "headers": headers}


def test_a_client_learns_that_the_model_is_there_and_what_it_takes(client, served) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", f"{MODEL}/ready", f"{MODEL}/versions/{served.version}/ready"):
        assert client.get(path).status_code == 200
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    about = client.get(f"{MODEL}/versions/{served.version}").json()
    assert about["versions"] == [served.version]
    assert [one["name"] for one in about["inputs"]] == list(served.inputs)
    assert about["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1]}]


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "score", "parameters": {"binary_data": True}}]},
    ],
    ids=["all outputs", "a named output"],
)
def test_binary_tensors_in_and_out_are_the_scores_of_the_run(client, run, rows, more) -> None:
    answer = client.post(f"{MODEL}/infer", **binary_request(client, rows, **more))
    size = int(answer.headers["Inference-Header-Content-Length"])
    output = json.loads(answer.content[:size])["outputs"][0]
    assert output["shape"] == [len(rows)] and output["parameters"]["binary_data_size"] == 4 * len(rows)
    assert np.array_equal(np.frombuffer(answer.content[size:], "<f4"), run.predict(rows))


@pytest.mark.parametrize("nested", [False, True])
def test_tensors_may_be_json(client, run, rows, served, nested) -> None:
    some = rows[:9]
    inputs = [
        {
            "name": name,
            "shape": [9, 1] if nested else [9],
            "datatype": "FP64" if name in ("price", "age_days") else "BYTES",
            "data": [[row[name]] if nested else row[name] for row in some],
        }
        for name in served.inputs
    ]
    answer = client.post(f"{MODEL}/infer", json={"id": "7", "inputs": inputs}).json()
    assert answer["id"] == "7" and answer["model_version"] == served.version
    assert np.array_equal(np.array(answer["outputs"][0]["data"], np.float32), run.predict(some))


def test_another_model_or_version_is_not_here(client) -> None:
    for path in ("/v2/models/other", f"{MODEL}/versions/1", "/v2/models/other/ready"):
        assert client.get(path).status_code == 404


def unread(data) -> dict:
    """One that the model does not read."""
    return {"name": "more", "datatype": "INT64", "shape": [len(data)], "data": data}


def wrong(client, rows, change) -> str:
    request = binary_request(client, rows[:2])
    size = int(request["headers"]["Inference-Header-Content-Length"])
    head, data = json.loads(request["content"][:size]), request["content"][size:]
    data = change(head, data) or data
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    answer = client.post(f"{MODEL}/infer", content=text + data, headers=headers)
    assert answer.status_code == 400
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head, data: data + b"1", "1 bytes more"),
        (lambda head, data: data[:-1], "at most what follows"),
        (lambda head, data: head["inputs"][0].update(shape=[3]), "must have 3 values"),
        (lambda head, data: head["inputs"][0].update(shape=[2, 2]), "[N, 1]"),
        (lambda head, data: head["inputs"][0].update(shape=[-1]), "[N, 1]"),
        (lambda head, data: head["inputs"][0].update(shape=[True]), "[N, 1]"),
        (lambda head, data: head["inputs"][0].update(datatype="BF16"), "datatype must be BYTES"),
        (lambda head, data: head["inputs"][0].update(datatype="FP32"), "are 8 bytes"),
        (lambda head, data: head["inputs"][0].update(name="other"), "'user' is missing"),
        (lambda head, data: head["inputs"][0]["parameters"].update(binary_data_size=-1), "at most what follows"),
        (lambda head, data: b"\xff\xff\xff\xff" + data[4:], "texts in UTF-8"),
        (lambda head, data: data[:4] + b"\xff" + data[5:], "texts in UTF-8"),
        (lambda head, data: head.update(outputs=[{"name": "other"}]), "'score'"),
        (lambda head, data: head.update(inputs={}), "array of tensors"),
        (lambda head, data: head["inputs"].append(unread([1, 2, 3])), "('more') must have as many rows as the others"),
        (lambda head, data: head["inputs"].append(unread("ab")), "data must be an array; got a text"),
        (lambda head, data: head["inputs"].append(unread([[1, 2], 3])), "data must hold plain values"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_named(client, rows, change, message) -> None:
    assert message in wrong(client, rows, change)


def test_more_rows_than_a_request_may_have_are_refused_before_they_are_read(client) -> None:
    answer = client.post(f"{MODEL}/infer", json={"inputs": [unread([]) | {"shape": [10_001]}]})
    assert (answer.status_code, answer.json()["error"]) == (413, "A request must have at most 10,000 rows; got 10,001.")
