"""What cannot be done is refused in one sentence: what it must be, what it is, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import crossrank
import crossrank.data
from crossrank.cli.experiments import _places
from crossrank.data import Encoder, open_table
from crossrank.data.scaling import NumericStatistics
from crossrank.data.sources import open_source
from crossrank.errors import CrossRankError
from crossrank.evaluation.metrics import measure
from crossrank.evaluation.stability import stability
from crossrank.experiments.compress import _check
from crossrank.experiments.demo import run_demo
from crossrank.experiments.paper.movielens import split_dataset
from crossrank.experiments.space import Space
from crossrank.experiments.trials import _read
from crossrank.experiments.tune import _check_rates, _claim, _Search
from crossrank.models import build_model, parse_model_settings
from crossrank.models.ensemble import Ensemble
from crossrank.nn import Features
from crossrank.nn.cross_base import BaseCrossLayer
from crossrank.nn.general import GeneralCrossLayer
from crossrank.reports.page import _check_column
from crossrank.schema import Categorical, Cross, Feature, Label, Schema
from crossrank.schema.draft import draft_features
from crossrank.schema.infer import read_columns
from crossrank.serving.bundle import Bundle
from crossrank.serving.export import export
from crossrank.serving.http.served import Served
from crossrank.serving.http.settings import ServeSettings, read_token
from crossrank.serving.scored_tables import predict_table
from crossrank.shapes import checked
from crossrank.training import TrainingSettings
from crossrank.training.seeds import train_seeds

SCHEMA = Schema([Categorical(name="user"), Cross(of=("user",))], Label(name="click"))
FRAME = pl.DataFrame({"user": ["ann", "bob"]})
USER = Feature("user", "categorical", 5)


def deep(levels: int) -> list:
    return [deep(levels - 1)] if levels else []


def model(**settings):
    return build_model(parse_model_settings(settings), [USER])


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def bundle(folder: Path) -> Path:
    for name in ("manifest.json", "model.onnx"):
        write(folder / name, b"")
    return folder


REFUSED = {
    "a set that nobody knows": (
        lambda _: open_source("creteo", ["x"]),
        "Known sets are .*; got 'creteo'. Did you mean 'criteo'",
    ),
    "two paths for a set": (lambda _: open_source("avazu", ["a", "b"]), "is one file or folder; got 2 paths"),
    "a set that is not there": (lambda at: open_source("avazu", [at / "a"]), "must be a file or folder; it does not"),
    "a set that is packed": (
        lambda at: open_source("avazu", [write(at / "a.tar.gz", b"")]),
        "must be the file 'train.gz', .* itself; got an archive. Unpack it first",
    ),
    "a set with other columns": (
        lambda at: open_source("avazu", [write(at / "train.csv", b"id,click\n1,0\n")]),
        "Avazu's training file has 24 columns; train.csv lacks 'hour'",
    ),
    "what to do about errors": (
        lambda _: open_table(FRAME, on_error="ignore"),
        "must be 'raise' or 'skip'; got 'ignore'",
    ),
    "a separator": (lambda _: open_table(FRAME, separator="é"), "must be one or a few ASCII characters; got 'é'"),
    "a workbook": (
        lambda at: open_table(write(at / "a.xlsx", b"PK")),
        "must be csv, tsv, text .* or parquet; got xlsx. Write it as parquet or csv first",
    ),
    "columns of two lengths": (lambda _: open_table({"a": [1], "b": [1, 2]}), "All columns must have one length"),
    "values of two types": (
        lambda _: open_table({"a": [1, "b"]}),
        "Column 'a' must hold values of one type; .* one type first",
    ),
    "a text for a column": (lambda _: open_table({"a": "abc"}), "Column 'a' must hold values of one type; got str"),
    "an encoder of crosses": (
        lambda _: Encoder.fit(FRAME, SCHEMA),
        "must have no crosses; got 'user.*prepare learns crosses",
    ),
    "counts of a column that has none": (
        lambda _: Encoder.fit(FRAME, Schema([Categorical(name="user")], Label(name="click"))).counts("usr"),
        "Counts are kept for 'user'; got 'usr'. Did you mean 'user'",
    ),
    "a deviation of nothing": (lambda _: NumericStatistics(deviation=0.0), "must fit together; it does not"),
    "bins without ends": (lambda _: NumericStatistics(lows=[0.0], counts=[0, 0, 1]), "must fit together; it does not"),
    "a hashed vocabulary": (
        lambda _: Categorical(name="user", hash_size=9, max_size=9),
        "is hashed, so min_count and max_size do not apply. Leave out one of them",
    ),
    "a name that is no text": (lambda _: read_columns({1: [2]}), "must have different names of text; got 1. Rename it"),
    "a schema of a draft without a label": (
        lambda _: draft_features(FRAME).schema,
        "A schema needs a label; the draft",
    ),
    "an unknown key of a schema": (
        lambda _: Schema.from_dict({"label": {}, "features": [], "featrues": []}),
        "has the unknown key 'featrues'. Did you mean 'features'",
    ),
    "half a character": (lambda _: checked(str, "\ud800", "a"), "'a' must be text of whole characters"),
    "too many levels": (lambda _: checked(Any, deep(40), "a"), "must not be nested deeper than 32 levels"),
    "metrics of other tasks": (
        lambda _: measure(np.zeros((3, 2)), np.zeros((3, 2)), label_kind="tasks", tasks=["a"]),
        r"must be \(rows, 1\); got \(3, 2\) and \(3, 2\)",
    ),
    "one run for stability": (lambda _: stability([]), "at least two runs of a setting; got 0. Train with --seeds 5"),
    "products of one field": (lambda _: model(name="dlrm"), "it needs two; got 'user' alone. Add a feature"),
    "a gate": (lambda _: GeneralCrossLayer(4, gate="x"), "gate must be 'information' or left out; got 'x'"),
    "a kernel": (lambda _: BaseCrossLayer(4).kernel(), "must have one kernel; BaseCrossLayer has none"),
    "a penalty without kernels": (
        lambda _: TrainingSettings(l2=0.1).for_model(model(name="logistic-regression"), "cpu"),
        "LogisticRegression has none, got l2=0.1. Leave training.l2 out",
    ),
    "a bundle that is none": (
        lambda at: Bundle.open(at),
        "must be a bundle; it has no manifest.json beside a model.onnx",
    ),
    "a demo over something else": (
        lambda at: run_demo(at, overwrite=True),
        "is not a demo folder, so it will not be replaced. Choose another name",
    ),
    "an experiment without its data": (
        lambda at: split_dataset(None, at, 0, quick=True),
        "needs MovieLens-1M; got no path. Pass --data movielens-1m=ml-1m.zip",
    ),
    "a catalogue for a bundle": (
        lambda at: Served.open(bundle(at), catalogue=at / "items.csv", id="item"),
        "A catalogue is ranked by a run; got a bundle. Serve the run itself",
    ),
    "reasons of a bundle": (
        lambda _: Served("x", SimpleNamespace(version="1", schema=SCHEMA)).reasons({}),
        "Reasons are told by a run; a bundle is served. Leave out explain",
    ),
    "a smaller model of tasks": (
        lambda _: _check(SimpleNamespace(schema=SimpleNamespace(label=Label(columns=("a", "b"))), path="r"), 2, None),
        "compressed whose label has two classes or is a number; got the kind tasks in r",
    ),
    "a breakdown by an unknown column": (
        lambda _: _check_column("contry", [{"curves": {}}, {"curves": {"groups": {"country": []}}}]),
        "The breakdown knows the columns 'country'; got 'contry'. Did you mean 'country'",
    ),
    "rates of a space without them": (
        lambda _: _check_rates(2, Space.parse({"search": {"a": [1]}})),
        "searched with 2 rates must search training.learning_rate; this one does not",
    ),
    "three rates": (
        lambda _: _check_rates(3, Space.parse({"search": {"a": [1]}})),
        "rates must be 1, 2, 4 or 8.*got 3",
    ),
    "a search without an end": (
        lambda _: _Search._leaders(None, []),
        "At least one trial must train to the end; none did",
    ),
    "another search": (
        lambda at: _claim(write(at / "plan.json", b'{"seed": 1}').parent, {"rates": 1, "seed": 2}),
        "must hold this search or none; it holds another: seed was 1 and is 2. Give the same arguments",
    ),
    "a plan that is none": (
        lambda at: _claim(write(at / "plan.json", b"[]").parent, {}),
        "plan.json .* must be an object",
    ),
    "a trial that is none": (lambda at: _read(write(at / "0.json", b"[]")), "must be an object.* Remove it: its trial"),
    "a trial of nothing": (
        lambda at: _read(write(at / "0.json", b"{}")),
        "0.json is not what it must be: 'number' must be",
    ),
    "a trial that was edited": (
        lambda at: _read(write(at / "0.json", b'{"checksum": ""}')),
        "must be what was written; it is not. Remove it: its trial is then made again",
    ),
    "a server without workers": (lambda at: ServeSettings(run=at, workers=0), "workers must be above 0; got 0"),
    "a long wait": (lambda at: ServeSettings(run=at, max_wait_ms=1001), "between 0 and 1000; got 1001"),
    "a port": (lambda at: ServeSettings(run=at, port=65536), "between 0, for any free one, and 65535; got 65536"),
    "items without ids": (lambda at: ServeSettings(run=at, catalogue=at), "--catalogue and --id go together"),
    "a token that cannot be read": (lambda at: read_token(at, "TOKEN"), "must be a file with a token in it; it cannot"),
    "a short token": (
        lambda at: read_token(write(at / "token", b"secret\n"), "TOKEN"),
        "must have 16 or more ASCII characters and no blanks; that of .*token does not. Make one: openssl rand -hex 32",
    ),
    "data without a name": (lambda _: _places(["ml-1m.zip"]), "--data must read NAME=PATH; got 'ml-1m.zip'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_told_what_is_wrong_and_what_to_do(what, tmp_path) -> None:
    call, message = REFUSED[what]
    with pytest.raises(CrossRankError, match=message):
        call(tmp_path)


@pytest.mark.parametrize("module", [crossrank, crossrank.data])
def test_a_module_lacks_what_it_does_not_have(module) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = module.trian


def test_a_run_is_not_replaced_by_what_it_is_not(run, tmp_path) -> None:
    with pytest.raises(CrossRankError, match=r"must be free for a folder of 2 runs; it is a single run"):
        train_seeds(data="never read", into=run.path, seeds=2)
    with pytest.raises(CrossRankError, match=r"is not a bundle, so it will not be replaced"):
        export(run, tmp_path, overwrite=True)
    with pytest.raises(CrossRankError, match=r"must end in one of '.csv', '.tsv', '.parquet'; got 'a.xlsx'"):
        predict_table(run, FRAME, tmp_path / "a.xlsx")


def test_lists_are_written_as_parquet_alone(run, clicks, tmp_path) -> None:
    rows = clicks.head(3).with_columns(seen=pl.lit([1, 2]))
    with pytest.raises(
        CrossRankError, match=r"A cell of a csv file holds one value; got lists in .*'seen'.*a\.parquet"
    ):
        predict_table(run, rows, tmp_path / "a.csv")
    assert predict_table(run, rows, tmp_path / "a.parquet") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_an_ensemble_is_called_with_features() -> None:
    both = Ensemble([model(name="dnn"), model(name="dnn")])
    with pytest.raises(TypeError, match="call the model with features"):
        both.logits(torch.zeros(1, 16))
    assert both(Features(torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, 0), ())).shape == (1,)
