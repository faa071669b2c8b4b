"""Runs with random weights, which take no training."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from crossrank.data import Encoder
from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.runs import Run, write_run
from crossrank.schema import Categorical, Label, Multivalent, Numeric, Schema
from crossrank.serving.export import export

sys.path.insert(0, str(Path(__file__).parent))  # makes ``untrained`` importable for the tests beside it

COLUMNS = [
    Categorical(name="user"),
    Categorical(name="hashed", hash_size=50),
    Multivalent(name="tags"),
    Multivalent(name="genres"),
    Numeric(name="age", encoding="scalar"),
    Numeric(name="price", encoding="scalar+values+pieces"),
]
STRANGE = [  # unseen, missing and empty values
    dict.fromkeys([column.name for column in COLUMNS]),
    {"user": "never", "hashed": "never", "tags": "never|a|never", "genres": "", "age": -1e9, "price": 1e30},
    {"user": 3, "hashed": 2.5, "tags": [], "genres": ["x", None], "age": "4", "price": None},
]


def table(rows: int = 400, seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    words = ["a", "b", "c", "a|b", "b|c|a", "", None]
    return pl.DataFrame(
        {
            "user": draw.choice(30, rows).astype(str),
            "hashed": draw.choice(200, rows).astype(str),
            "tags": [words[i] for i in draw.integers(len(words), size=rows)],
            "genres": [["x", "y", "x|y", None][i] for i in draw.integers(4, size=rows)],
            "age": draw.normal(40, 10, rows),
            "price": [None if one > 4 else one for one in draw.lognormal(size=rows).round(2)],
        }
    )


@pytest.fixture(scope="session")
def make_run(tmp_path_factory):
    """A function that makes a run of a model, for any kind of label and any of the columns."""

    def make(name: str = "dcn-v2", *, label: Label | None = None, columns=COLUMNS, **more) -> Run:
        torch.manual_seed(3)
        encoder = Encoder.fit(table(), Schema(columns, label or Label(name="y")))
        values = {"name": name, "embedding": {"dim": 4}, **more}
        if "deep" in {field.name for field in dataclasses.fields(MODELS[name].settings)}:
            values["deep"] = {"sizes": [8, 4]}
        outputs = encoder.schema.label.num_outputs
        model = build_model(parse_model_settings(values), encoder.features, num_outputs=outputs).eval()
        for parameter in model.parameters():
            if not parameter.any():  # what starts at zero
                nn.init.normal_(parameter, std=0.1)
        folder = tmp_path_factory.mktemp("runs") / "run"
        folder.mkdir()
        config, info = {"model": values, "training": {}, "split": {}}, {"seed": 3, "data_fingerprint": "none"}
        write_run(folder, model=model, encoder=encoder, config=config, info=info, report={})
        return Run.open(folder)

    return make


@pytest.fixture(scope="session")
def bundle(run, dataset, tmp_path_factory):
    """The small trained run as a bundle."""
    return export(run, tmp_path_factory.mktemp("bundles") / "small", data=dataset).path


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
