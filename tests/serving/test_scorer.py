"""One scorer for runs and bundles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pandas as pd
import polars as pl
import pytest

import crossrank as cr
from crossrank.errors import BundleError, DataError, MissingExtraError, RunError, SchemaError
from crossrank.serving.scored_tables import predict_table
from crossrank.serving.scorer import Scorer, onnx_answers


@pytest.fixture(scope="module")
def scorer(bundle):
    return Scorer.open(bundle)


class ArrowOnly:
    """What any Arrow table of any library offers, and nothing else."""

    def __init__(self, frame):
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema=None):
        return self._frame.__arrow_c_stream__(requested_schema)


def test_all_ways_to_score_a_table_agree(scorer, run, clicks, tmp_path):
    expected = run.predict(clicks)
    predict_table(run, clicks, tmp_path / "scored.parquet")
    np.testing.assert_array_equal(pl.read_parquet(tmp_path / "scored.parquet")["probability"], expected)
    of_run = Scorer.open(run.path)
    clicks.write_csv(tmp_path / "clicks.csv")
    for rows in (
        clicks,
        clicks.to_dicts(),
        pd.DataFrame(clicks.to_dict(as_series=False)),
        ArrowOnly(clicks),
        tmp_path / "clicks.csv",
    ):
        np.testing.assert_array_equal(of_run.score(rows), expected)
        np.testing.assert_allclose(scorer.score(rows), expected, atol=1e-6)
    for row, answer in zip(clicks.head(5).to_dicts(), expected, strict=False):
        assert scorer.score(row) == pytest.approx([answer], abs=1e-6)


def test_a_scorer_tells_what_it_is(scorer, run):
    assert scorer.schema == run.schema and scorer.features == run.encoder.features
    assert scorer.label.name == "click" and scorer.version == run.fingerprint == Scorer.open(run).version
    assert scorer.precision == "float32" and len(scorer.warm_up_rows) == 8
    assert scorer.score([]).shape == (0,)
    assert cr.Scorer is Scorer


def test_another_run_has_another_version(run, make_run):
    assert make_run().fingerprint == make_run().fingerprint != run.fingerprint


@pytest.mark.parametrize("kind", ["bundle", "run"])
def test_bad_rows_are_refused_as_the_encoder_does(kind, request, clicks):
    found = request.getfixturevalue(kind)
    scorer, row = Scorer.open(found), clicks.row(0, named=True)
    with pytest.raises(SchemaError, match="Column 'country' of the schema is missing from row 1"):
        scorer.score({name: value for name, value in row.items() if name != "country"})
    with pytest.raises(DataError, match="'price' must hold finite numbers; got 'cheap' in row 2"):
        scorer.score([row, {**row, "price": "cheap"}])
    with pytest.raises(DataError, match="got int"):
        scorer.score(7)


def test_threads_that_share_a_scorer_get_their_own_answers(scorer, run, clicks):
    rows = clicks.head(400).to_dicts()
    expected = scorer.score(rows)
    parts = [rows[start : start + 5] for start in range(0, 400, 5)] * 3
    for shared in (scorer, Scorer.open(run)):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(shared.score, parts))
        np.testing.assert_allclose(np.concatenate(found), np.tile(expected, 3), atol=1e-6)


def test_a_bundle_is_opened_and_scored_without_torch_and_polars(bundle, run, clicks):
    rows = clicks.head(20).to_dicts()
    program = f"""
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "polars", "pandas", "typer", "rich"):
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Absent())
import crossrank as cr
import crossrank.serving
scorer = cr.Scorer.open({str(bundle)!r})
print(json.dumps(scorer.score(json.load(sys.stdin)).tolist()))
assert not {{"torch", "polars"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps(rows), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), run.predict(rows), atol=1e-6)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "encoder/vocabulary.safetensors", "rows.json"])
def test_a_damaged_bundle_is_refused(name, bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "copy")
    file = copy / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match=f"damaged: {name} is not what was written"):
        Scorer.open(copy)
    file.unlink()
    missing = "has no run.json" if name == "model.onnx" else f"{name} is missing"
    with pytest.raises((BundleError, RunError), match=missing):
        Scorer.open(copy)


def test_a_graph_that_cannot_be_run_is_refused_also_unverified(bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "copy")
    (copy / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match="must be a graph that onnxruntime runs"):
        Scorer.open(copy, verify=False)


def test_a_graph_whose_error_is_no_text_is_refused_without_a_word_on_standard_output(tmp_path, capfd):
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "graph", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString().replace(b"Relu", b"Re\xffu"))
    with pytest.raises(BundleError, match="must be a graph that onnxruntime runs"):
        onnx_answers(tmp_path / "model.onnx", 1)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "crossrank bundle", "format_version": 9}', "version 1; got 'crossrank bundle' of version 9"),
        ('{"format": "other"}', "must be a crossrank bundle"),
        ("[1]", r"the whole must be an object; got \[1\]"),
        ("{", "must be readable JSON"),
        ('{"format": "crossrank bundle", "format_version": 1, "run": "1"}', "'precision' must be given; it is missing"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(text, message, bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "copy")
    (copy / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=message):
        Scorer.open(copy)


def test_what_is_neither_run_nor_bundle_is_refused(tmp_path, dataset):
    with pytest.raises(RunError, match="must be a run folder"):
        Scorer.open(tmp_path)
    with pytest.raises(RunError, match="must be a run folder"):
        Scorer.open(dataset.path)


def test_a_bundle_without_onnxruntime_says_how_to_install_it(bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'crossrank\[export\]'"):
        Scorer.open(bundle)
