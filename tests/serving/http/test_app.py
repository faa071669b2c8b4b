"""What each path answers."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading

import numpy as np
import polars as pl
import pytest

from crossrank.schema import Categorical, Label, Numeric
from crossrank.serving.http.app import App
from crossrank.serving.http.bodies import BodyReader, RefusedError
from crossrank.serving.http.served import Models, Served
from crossrank.serving.http.settings import ServeSettings

ADMIN = {"authorization": "Bearer an-admin-token-of-ours"}


def test_scores_are_those_of_the_run_bit_for_bit(client, run, rows) -> None:
    answer = client.post("/score", json={"rows": rows})
    assert answer.status_code == 200
    assert np.array_equal(np.array(answer.json()["scores"], np.float32), run.predict(rows))


def test_one_row_may_be_the_body_itself(client, run, rows, served) -> None:
    answer = client.post("/score", json=rows[0]).json()
    assert answer == {"scores": run.predict(rows[:1]).tolist(), "model": served.version}


def test_no_rows_have_no_scores(client) -> None:
    assert client.post("/score", json={"rows": []}).json()["scores"] == []


def test_more_rows_than_a_batch_are_scored_in_their_order(make_client, run, rows) -> None:
    scores = make_client(max_batch=7).post("/score", json={"rows": rows}).json()["scores"]
    np.testing.assert_allclose(scores, run.predict(rows), atol=1e-6)


def test_items_are_ranked_by_their_score_in_the_context(client, run, rows) -> None:
    context = {name: rows[0][name] for name in ("user", "country", "language", "device", "hour")}
    items = [{name: row[name] for name in row if name not in context} for row in rows[:50]]
    answer = client.post("/rank", json={"context": context, "items": items, "k": 5}).json()["items"]
    expected = run.predict([context | item for item in items])
    order = np.argsort(-expected, kind="stable")[:5]
    assert [one["index"] for one in answer] == order.tolist()
    np.testing.assert_allclose([one["score"] for one in answer], expected[order], atol=1e-6)


@pytest.fixture(scope="module")
def catalogue(clicks, tmp_path_factory):
    path = tmp_path_factory.mktemp("catalogue") / "items.parquet"
    clicks.select("item", "category", "tags", "price", "age_days").unique("item", maintain_order=True).write_parquet(
        path
    )
    return path


def test_items_of_a_catalogue_are_named_by_id(make_client, run, rows, catalogue) -> None:
    client = make_client(Served.open(run.path, catalogue, "item"), catalogue=catalogue, id="item")
    items = pl.read_parquet(catalogue).to_dicts()
    context = {name: rows[0][name] for name in ("user", "country", "language", "device", "hour")}
    expected = run.predict([context | item for item in items])
    everything = client.post("/rank", json={"context": context, "k": 3}).json()["items"]
    best = np.argsort(-expected, kind="stable")[:3]
    assert [one["id"] for one in everything] == [items[place]["item"] for place in best]
    some = client.post("/rank", json={"context": context, "items": [items[4]["item"], items[2]["item"]]}).json()[
        "items"
    ]
    assert {one["id"] for one in some} == {items[4]["item"], items[2]["item"]}
    unknown = client.post("/rank", json={"context": context, "items": ["nothing"]})
    assert unknown.status_code == 400 and "'nothing'" in unknown.json()["error"]


def test_ids_may_be_left_out_and_reasons_told(make_client, run, rows, catalogue) -> None:
    client = make_client(Served.open(run.path, catalogue, "item"), catalogue=catalogue, id="item")
    context = {name: rows[0][name] for name in ("user", "country", "language", "device", "hour")}
    first, second = client.post("/rank", json={"context": context, "k": 2, "explain": True}).json()["items"]
    assert client.post("/rank", json={"context": context, "k": 1, "exclude": [first["id"]]}).json()["items"] == [
        {"id": second["id"], "score": second["score"]}
    ]
    told = second["reasons"]
    assert len(told["alone"]) == len(told["pairs"]) == 5 and told["pairs"][0]["left"]
    assert client.post("/rank", json={"context": context, "k": 21, "explain": True}).status_code == 400


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ({"rows": 3}, 400, "rows must be an array of objects; got a number."),
        ({"rows": [{}, 3]}, 400, "rows[1] must be an object; got a number."),
        ({"rows": [{"hour": {"a": 1}}]}, 400, "rows[0].hour must be one value; got an object."),
        ({"rows": [{"tags": [[1]]}]}, 400, "rows[0].tags must be an array of plain values."),
        ({}, 400, "Column 'user' of the schema is missing from row 1; its columns are none."),
        ({"rows": [{}] * 10_001}, 413, "A request must have at most 10,000 rows; got 10,001."),
        ({str(i): 0 for i in range(500)}, 400, "rows[0] must have the model's 10 columns; got 500."),
    ],
)
def test_a_bad_request_is_told_which_field_is_wrong(client, content, status, message) -> None:
    answer = client.post("/score", json=content)
    assert (answer.status_code, answer.json()["error"]) == (status, message)


def test_a_number_that_is_none_is_named_with_its_row(client, rows) -> None:
    answer = client.post("/score", json={"rows": [rows[0], rows[1] | {"price": "much"}]})
    assert answer.status_code == 400
    assert "'price'" in answer.json()["error"] and "row 2" in answer.json()["error"]


def test_a_long_value_is_not_sent_back_whole(client, rows) -> None:
    answer = client.post("/score", json=rows[0] | {"price": "x" * 1_000_000})
    assert answer.status_code == 400 and len(answer.content) < 1500


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ({"k": 0}, 400, "k must be"),
        ({"k": True}, 400, "k must be"),
        ({"items": 3}, 400, "items must be an array of objects or ids; got a number"),
        ({"items": None}, 400, "items must be an array of objects or ids; got null"),
        ({"items": [None]}, 400, "items[0] must be an id"),
        ({"items": [{}, "a"]}, 400, "items[1] must be an object"),
        ({"items": ["a"]}, 400, ""),
        ({"items": [{}] * 10_001}, 413, "A request must have at most 10,000 items; got 10,001."),
        ({"context": []}, 400, "context must be an object"),
        ({"explain": 1}, 400, "explain must be true or false; got a number."),
        ({"exclude": "a"}, 400, "exclude must be an array of ids"),
        ({"exclude": [1.5]}, 400, "exclude must be an array of ids"),
        ({"items": [{}], "exclude": ["a"]}, 400, "exclude must be an array of ids, and goes with items that have one."),
    ],
)
def test_a_bad_ranking_is_refused(client, content, status, message) -> None:
    answer = client.post("/rank", json={"items": []} | content)
    assert (answer.status_code, answer.json()["error"][: len(message)]) == (status, message)
    assert answer.json()["error"]


def test_a_body_that_is_no_object_or_whose_sender_is_gone_is_refused(client) -> None:
    assert client.post("/score", json=[1]).json()["error"] == "The body must be a JSON object; got an array."

    async def gone() -> dict:
        return {"type": "http.disconnect"}

    reader = BodyReader(1000, 1.0)
    with pytest.raises(RefusedError, match="The client has gone"):
        asyncio.run(reader.read({"headers": []}, gone))
    assert reader.in_flight == 0


def test_bodies_that_are_more_together_than_may_be_sent_at_once_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("crossrank.serving.http.bodies.BYTES_IN_FLIGHT", 10)
    reader, waiting = BodyReader(8, 5.0), asyncio.Event()

    async def sends(size: int, more: bool, wait: bool = False):
        if wait:
            await waiting.wait()
        return {"type": "http.request", "body": b"x" * size, "more_body": more}

    async def both():
        parts = iter([sends(8, True), sends(0, False, wait=True)])
        first = asyncio.create_task(reader.read({"headers": []}, lambda: next(parts)))
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="Too much is being sent at once"):
            await reader.read({"headers": []}, lambda: sends(8, False))
        waiting.set()
        return await first

    assert asyncio.run(both()) == b"x" * 8 and reader.in_flight == 0


def test_rankings_are_found_in_as_many_threads_as_there_are_cores_for_a_process(served, run, monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    both = threading.Barrier(2)

    async def ask(workers: int):
        app = App(ServeSettings(run=run.path, workers=workers), Models(served))
        calls = (app._aside(both.wait, 0.5) for _ in range(2))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert sorted(asyncio.run(ask(workers=2))) == [0, 1]
    assert all(isinstance(one, threading.BrokenBarrierError) for one in asyncio.run(ask(workers=4)))


def test_a_failure_of_ours_shows_neither_a_traceback_nor_a_path(make_client, served, rows, monkeypatch, capfd) -> None:
    monkeypatch.setattr(Served, "score", lambda *_: 1 / 0)
    answer = make_client().post("/score", json=rows[0])
    assert answer.status_code == 500
    assert answer.json() == {"error": "Something went wrong here; the log knows more."}
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_metrics_count_requests_rows_and_unseen_values(make_client, rows) -> None:
    client = make_client()
    client.post("/score", json={"rows": [rows[0] | {"user": "nobody", "tags": ["t01", "new"]}, rows[1]]})
    client.post("/score", content=b"{")
    text = client.get("/metrics").text
    for line in (
        'crossrank_requests_total{path="/score",status="200"} 1.0',
        'crossrank_requests_total{path="/score",status="400"} 1.0',
        "crossrank_rows_total 2.0",
        'crossrank_unseen_total{column="user"} 1.0',
        'crossrank_unseen_total{column="tags"} 1.0',
        "crossrank_batch_rows_count 1.0",
        'crossrank_request_seconds_count{path="/score"} 2.0',
    ):
        assert line in text
    assert sum(float(n) for n in re.findall(r"crossrank_scores_total\{.*\} (.*)", text)) == 2


def test_a_reload_puts_another_run_in_place_and_a_broken_one_changes_nothing(make_client, run, tmp_path, rows) -> None:
    link = tmp_path / "current"
    shutil.copytree(run.path, tmp_path / "first")
    link.symlink_to("first")
    client = make_client(Served.open(link), link, admin_token=ADMIN["authorization"].removeprefix("Bearer "))
    before = client.post("/score", json=rows[0]).json()
    (tmp_path / "broken").mkdir()
    link.unlink()
    link.symlink_to("broken")
    answer = client.post("/admin/reload", headers=ADMIN)
    assert answer.status_code == 409 and str(tmp_path) not in answer.text
    assert client.post("/score", json=rows[0]).json() == before
    link.unlink()
    link.symlink_to("first")
    assert client.post("/admin/reload", headers=ADMIN).json()["model"] == before["model"]
    assert client.get("/model").json()["name"] == "current"


def test_a_shadow_scores_the_same_rows_for_the_metrics_alone(make_client, served, rows) -> None:
    client = make_client(shadow=served)
    with client:  # one loop for all requests, so that what follows an answer is done
        client.post("/score", json={"rows": rows[:5]})
        for _ in range(100):
            text = client.get("/metrics").text
            if "crossrank_shadow_difference_count 5.0" in text:
                break
        assert 'crossrank_shadow_difference_bucket{le="1e-06"} 5.0' in text


def test_two_versions_are_served_side_by_side(make_client, served, rows, tmp_path, run) -> None:
    other = Served.open(run.path)
    other.version, score = "other", other.score
    other.score = lambda rows: (score(rows)[0] / 2, {})
    client = make_client(also=other)
    plain = client.post("/score", json=rows[0]).json()
    asked = client.post("/score?version=other", json=rows[0]).json()
    assert asked == {"scores": [plain["scores"][0] / 2], "model": "other"}
    assert client.get("/v2/models/small").json()["versions"] == ["other", served.version]
    assert client.get("/v2/models/small/versions/other/ready").status_code == 200
    assert client.post("/score?version=third", json=rows[0]).status_code == 404


def test_a_column_that_two_features_are_made_of_is_told_once(make_client, make_run) -> None:
    both = make_run(columns=[Categorical(name="whole", source="age"), Numeric(name="age", encoding="scalar")])
    columns = make_client(model=Served.open(both.path)).get("/model").json()["columns"]
    assert columns == [{"name": "age", "kind": "numeric"}]


def test_several_tasks_are_answered_by_a_number_for_each_and_ranked_by_none(make_run, make_client) -> None:
    run = make_run("mmoe", label=Label(columns=("click", "like")))
    with make_client(model=Served.open(run.path), run=run.path) as client:
        row = dict.fromkeys(run.schema.inputs)
        answer = client.post("/score", json={"rows": [row, row]}).json()
        np.testing.assert_allclose(answer["scores"], run.predict([row, row]), atol=1e-6)
        assert client.get("/model").json()["label"]["columns"] == ["click", "like"]
        assert client.get(f"/v2/models/{run.path.name}").json()["outputs"][0]["shape"] == [-1, 2]
        refused = client.post("/rank", json={"context": {}, "items": [row]})
        assert refused.status_code == 400 and "several classes or tasks" in refused.text
