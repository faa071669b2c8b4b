"""A served run, and a client of it in this process."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings

import pytest
import uvicorn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another client than httpx
    from starlette.testclient import TestClient

from crossrank.serving.http.app import App
from crossrank.serving.http.served import Models, Served
from crossrank.serving.http.server import bind
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


@pytest.fixture(scope="module")
def let_listen():
    """A function that lets an app listen, in a thread; the server and its address."""
    with contextlib.ExitStack() as ended:

        def start(app, **config):
            server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, **config))
            bound = ended.enter_context(bind("127.0.0.1", 0))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
            thread.start()
            ended.callback(thread.join)
            ended.callback(setattr, server, "should_exit", True)
            while not server.started:
                time.sleep(0.01)
            return server, bound.getsockname()

        yield start


@pytest.fixture(scope="module")
def listen(run, clicks, tmp_path_factory, let_listen):
    """A function that lets a server with a catalogue listen, in a thread; its address."""
    items = tmp_path_factory.mktemp("items") / "items.csv"
    own = ["item", "category", "tags", "price", "age_days"]
    clicks.select(own).unique("item", maintain_order=True).write_csv(items)

    def start(**settings) -> str:
        app = App(ServeSettings(run=run.path, **settings), Models(Served.open(run.path, items, "item")))
        _, (host, port) = let_listen(app)
        return f"http://{host}:{port}"

    return start


@pytest.fixture(scope="module")
def address(listen):
    return listen()
