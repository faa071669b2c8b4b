"""Ten thousand raw rows, some of them strange, through every way to a score."""

from __future__ import annotations

import warnings

import numpy as np
import polars as pl
import pytest
from commands import crossrank

import crossrank as cr
from crossrank.data.generators.demo import click_log
from crossrank.serving.http.app import App
from crossrank.serving.http.served import Models, Served
from crossrank.serving.http.settings import ServeSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another client than httpx
    from starlette.testclient import TestClient

CONTEXT = ["device", "hour"]


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """Other rows than those of the training, so that users, items and tags are unseen; cells are missing."""
    return click_log(10_000, seed=8).frame.drop("click").to_dicts()


@pytest.fixture(scope="module")
def predicted(place, rows) -> np.ndarray:
    return cr.Run.open(place / "runs/first").predict(rows)


def over_http(model, rows) -> dict[str, np.ndarray]:
    """The scores of a served model, by our own path and by the Open Inference Protocol."""
    app = App(ServeSettings(run=model), Models(Served.open(model)))
    client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    tensors = [{"name": name, "shape": [len(rows)], "data": [row[name] for row in rows]} for name in rows[0]]
    for tensor in tensors:
        tensor["datatype"] = "FP64" if isinstance(tensor["data"][0], float) else "BYTES"
    inferred = client.post(f"/v2/models/{model.name}/infer", json={"inputs": tensors}).json()
    scores = client.post("/score", json={"rows": rows}).json()["scores"]
    return {"/score": np.array(scores), "/v2/…/infer": np.array(inferred["outputs"][0]["data"])}


def test_predict_and_a_scorer_of_the_run_agree_bit_for_bit(place, rows, predicted) -> None:
    pl.DataFrame(rows).write_parquet(place / "rows.parquet")
    crossrank("predict", "runs/first", "rows.parquet", "--into", "agreement.parquet", cwd=place)
    np.testing.assert_array_equal(pl.read_parquet(place / "agreement.parquet")["probability"], predicted)
    np.testing.assert_array_equal(cr.Scorer.open(place / "runs/first").score(rows), predicted)


def test_onnx_and_servers_of_both_agree_with_predict_to_a_millionth(place, rows, predicted) -> None:
    crossrank("export", "runs/first", "--into", "bundles/agreement", "--data", "dataset", cwd=place)
    bundle = place / "bundles/agreement"
    found = {"onnx": cr.Scorer.open(bundle).score(rows)}
    for model in (place / "runs/first", bundle):
        found |= {f"{model.parent.name} {path}": scores for path, scores in over_http(model, rows).items()}
    for way, scores in found.items():
        np.testing.assert_allclose(scores, predicted, rtol=0, atol=1e-6, err_msg=way)


def test_rankings_agree_with_predict_to_a_millionth(place, rows, predicted) -> None:
    item = [name for name in rows[0] if name not in CONTEXT]
    ranker = cr.Ranker.open(place / "runs/first", item=item)
    found = np.zeros(len(rows))
    places = pl.DataFrame(rows).with_row_index("place").group_by(CONTEXT).agg("place")
    for *values, some in places.iter_rows():
        ranking = ranker.rank(dict(zip(CONTEXT, values, strict=True)), [rows[one] for one in some], k=len(some))
        found[np.array(some)[ranking.positions]] = ranking.scores
    np.testing.assert_allclose(found, predicted, rtol=0, atol=1e-6)
