"""Checkpoints open with another number of processes, other placements, and without TorchRec.

The three cases by name are those of pytorch issue 79016.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from torchrun import NEEDS

from crossrank.errors import RunError
from crossrank.training.distributed.checkpoint import read_best
from crossrank.training.finish import seeded_model
from crossrank.training.settings import Config

pytestmark = NEEDS

STEPS = 6


def values(how):
    training = {"batch_size": 64, "epochs": 8, "learning_rate": 0.01, "average_decay": 0.9, "placement": how}
    return {"model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}}, "training": training}


def job(kind, dataset, how, folder):
    return {"job": kind, "dataset": str(dataset.path), "values": values(how), "folder": str(folder), "steps": STEPS}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: folder / name for name in ("some", "replicated", "rows")}


@pytest.fixture(scope="module")
def written(dataset, at_work, places):
    """What two processes saved: table-wise, data-parallel, row-wise."""
    hows = ("table-wise", "data-parallel", "row-wise")
    jobs = [job("saved", dataset, {"all": how}, place) for how, place in zip(hows, places.values(), strict=True)]
    return dict(zip(places, at_work(jobs, processes=2), strict=True))


@pytest.fixture(scope="module")
def read(dataset, at_work, places, written):
    """What one process finds in them, placed in another way."""
    jobs = [
        job("loaded", dataset, {"all": "row-wise"}, places["some"]),
        job("loaded", dataset, {"all": "row-wise"}, places["replicated"]),
        job("loaded", dataset, {"all": "data-parallel"}, places["rows"]),
        job("loaded", dataset, {"all": "table-wise"}, places["replicated"]),
    ]
    one = [ranks[0] for ranks in at_work(jobs, processes=1)]
    two = at_work([job("loaded", dataset, {"all": "column-wise", "item": "table-wise"}, places["rows"])], processes=2)
    return {"some": [one[0]], "replicated": [one[1], one[3]], "rows": [one[2], two[0][0], two[0][1]]}


def assert_same(found, written):
    assert np.abs(np.array(found["answers"]) - np.array(written["answers"])).max() < 1e-5
    assert np.abs(np.array(found["later"]) - np.array(written["later"])).max() < 1e-5  # so all that is kept was right


def test_case_1_a_table_present_on_some_ranks_only(written, read):
    first, second = (set(rank["parts"]) for rank in written["some"])
    assert first and second and not first & second
    assert_same(read["some"][0], written["some"][0])


def test_case_2_data_parallel_on_several_but_row_wise_on_one(written, read):
    assert written["replicated"][0]["parts"] == written["replicated"][1]["parts"]
    for found in read["replicated"]:
        assert_same(found, written["replicated"][0])
    for found in read["rows"]:
        assert_same(found, written["rows"][0])


@pytest.mark.parametrize("name", ["some", "replicated", "rows"])
def test_case_3_inference_without_the_wrapper(dataset, written, places, name):
    model = seeded_model(Config.parse(values({})), dataset, seed=1)  # other weights, and none of TorchRec
    read_best(model, Path(places[name]))
    logits = model.predict_logits(batch.features for batch in dataset.valid.batches(512)).numpy()
    assert np.abs(logits - np.array(written[name][0]["answers"])).max() < 1e-5


def test_a_flipped_byte_of_a_state_is_named(dataset, written, places, tmp_path):
    for file in (places["rows"] / "checkpoint").rglob("*.safetensors"):
        damaged = tmp_path / file.name
        shutil.copytree(places["rows"], damaged)
        (flipped,) = damaged.rglob(file.name)
        content = bytearray(flipped.read_bytes())
        content[-1] ^= 1
        flipped.write_bytes(content)
        with pytest.raises(RunError, match=rf"{file.name} is not what was written"):
            read_best(seeded_model(Config.parse(values({})), dataset, seed=1), damaged)
