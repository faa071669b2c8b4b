"""The client against a server that listens."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import crossrank as cr
from crossrank.errors import ConfigError, ServerError
from crossrank.serving.client import Client, Ranked
from crossrank.serving.http.server import bind

CONTEXT = ("user", "country", "language", "device", "hour")


@pytest.fixture
def asking(address):
    with cr.Client(address) as client:
        yield client


def test_scores_are_those_of_the_run(asking, run, rows) -> None:
    expected = run.predict(rows)
    np.testing.assert_array_equal(np.array(asking.score(rows), np.float32), expected)
    assert asking.score(rows[0]) == pytest.approx([expected[0]], abs=1e-6)
    numpy_row = {**rows[0], "price": np.float64(rows[0]["price"] or 1), "hour": np.int64(3)}
    assert asking.score(numpy_row, version=asking.about()["version"]) == asking.score([numpy_row])
    assert 0 < asking.score({**rows[0], "user": datetime.date(2026, 1, 1)})[0] < 1
    assert asking.is_ready()


def test_rankings_name_items_of_the_catalogue_or_places_of_rows(asking, rows) -> None:
    context = {name: rows[0][name] for name in CONTEXT}
    best = asking.rank(context, k=3, explain=True)
    assert [type(one) for one in best] == [Ranked] * 3 and best[0].score >= best[2].score
    assert best[0].reasons and best[0].index is None
    without = asking.rank(context, k=3, exclude=[best[0].id])
    assert without[0].id == best[1].id
    again = asking.rank(context, [one.id for one in best])
    assert [one.id for one in again] == [one.id for one in best]
    (placed,) = asking.rank(context, [rows[0]])
    assert placed.index == 0 and placed.id is None and placed.reasons is None


def test_what_a_server_refuses_is_an_error_with_its_words(asking, rows) -> None:
    with pytest.raises(ServerError, match=r"status 400: Column 'price' must hold finite numbers") as caught:
        asking.score({**rows[0], "price": "much"})
    assert caught.value.status == 400
    with pytest.raises(ServerError, match=r"status 404"):
        asking.score(rows[0], version="other/one?")
    assert len(asking.score(rows[0])) == 1  # the connection is still good


def test_a_connection_that_was_closed_meanwhile_is_made_anew(asking, rows) -> None:
    asking.score(rows[0])
    asking._connection.sock.shutdown(2)
    assert len(asking.score(rows[0])) == 1
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(asking.score, rows[:20]))
    assert found == [asking.score(row) for row in rows[:20]]


def test_a_server_that_is_not_there_is_said_in_a_line() -> None:
    with bind("127.0.0.1", 0) as bound:  # nobody listens
        nobody = Client(f"http://127.0.0.1:{bound.getsockname()[1]}", seconds=1)
        assert not nobody.is_ready()
        with pytest.raises(ServerError, match=r"The server at 127.0.0.1:\d+ must answer; got: .*refused"):
            nobody.about()
    with pytest.raises(ConfigError, match="url must begin with http"):
        Client("127.0.0.1:8000")


def test_a_token_is_sent_where_the_server_has_one(listen, rows) -> None:
    token = "a-token-for-the-client"
    address = listen(token=token)
    with Client(address, token=token) as client:
        assert len(client.score(rows[0])) == 1
    with Client(address) as client, pytest.raises(ServerError, match="status 401"):
        client.score(rows[0])
