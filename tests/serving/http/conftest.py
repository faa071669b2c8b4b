"""A served run, and a client of it in this process."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another client than httpx
    from starlette.testclient import TestClient

from crossrank.serving.http.app import App
from crossrank.serving.http.served import Models, Served
from crossrank.serving.http.settings import ServeSettings


@pytest.fixture(scope="session")
def rows(clicks):
    """Raw rows as a client has them."""
    return clicks.drop("click").head(300).to_dicts()


@pytest.fixture(scope="session")
def served(run):
    return Served.open(run.path)


@pytest.fixture(scope="session")
def make_client(served, run):
    def make(model=served, run=run.path, also=None, shadow=None, **settings) -> TestClient:
        app = App(ServeSettings(run=run, **settings), Models(model, also, shadow))
        return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)

    return make


@pytest.fixture(scope="session")
def client(make_client):
    return make_client()
