"""The OpenAPI document says what the server does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import httpx
import pytest

# Which ids a catalogue has, and which tensors belong together, no document can say; too many rows are refused first.
SETTINGS = """
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 404, 405, 406, 413, 415]
"""


@pytest.fixture(scope="module")
def document(address):
    return httpx.get(f"{address}/openapi.json").json()


def test_every_path_is_there_and_every_reference_leads_somewhere(document, address, rows) -> None:
    names = document["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document))) <= set(names)
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            for parameter in call.get("parameters", []):
                if parameter["in"] == "path":
                    path = path.replace(f"{{{parameter['name']}}}", parameter["schema"]["enum"][0])
            body = {"json": {}} if "requestBody" in call else {}
            assert httpx.request(method, address + path, **body).status_code == (400 if body else 200), path


def test_the_columns_of_a_row_are_the_model_s(document, rows) -> None:
    row = document["components"]["schemas"]["Row"]
    assert set(row["required"]) == set(row["properties"]) == set(rows[0])


def test_a_server_with_a_token_says_so(make_client) -> None:
    client = make_client(token="a-token-for-the-client")
    assert client.get("/openapi.json").status_code == 401
    found = client.get("/openapi.json", headers={"authorization": "Bearer a-token-for-the-client"}).json()
    assert found["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert found["components"]["schemas"]["Request"]["required"] == ["items"]  # no catalogue


@pytest.mark.slow
def test_schemathesis_finds_no_answer_that_the_document_does_not_allow(address, tmp_path) -> None:
    command = shutil.which("schemathesis")
    if command is None:
        pytest.skip("schemathesis is not installed: make test-api")
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [command, "run", f"{address}/openapi.json", "--max-examples", "30"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
