"""What is asked of explanations and compression, on the demo's data, whose crosses are known."""

from __future__ import annotations

import pytest

from crossrank.data.generators.demo import PLANTED, click_log, schema
from crossrank.data.prepare import prepare
from crossrank.evaluation import explain
from crossrank.experiments.compress import compress
from crossrank.experiments.demo import MODELS
from crossrank.training import train

pytestmark = pytest.mark.slow

PAIRS = [frozenset(cross) for cross in PLANTED if len(cross) == 2]
VARIANTS = {
    "stacked": {},
    "parallel": {"structure": "parallel"},
    "low-rank": {"cross": {"layer": "low_rank"}},
    "mixture": {"cross": {"layer": "mixture"}},
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return prepare(click_log(100_000).frame, schema(), tmp_path_factory.mktemp("demo") / "dataset")


@pytest.fixture(scope="module", params=VARIANTS)
def learned(request, demo, tmp_path_factory):
    config = MODELS["dcn-v2"]
    config = {**config, "model": config["model"] | VARIANTS[request.param]}
    return train(demo, into=tmp_path_factory.mktemp(request.param) / "run", config=config)


def test_every_planted_pair_is_among_the_strongest(learned) -> None:
    first = [frozenset(cross.features) for cross in explain(learned, layer=1, top=len(PAIRS) + 1)]
    assert set(PAIRS) <= set(first)
    every = [frozenset(cross.features) for cross in explain(learned, top=10)]
    assert set(PAIRS) <= set(every)


@pytest.mark.parametrize("learned", ["stacked", "parallel"], indirect=True)
def test_compressing_keeps_the_test_log_loss(learned, demo, tmp_path) -> None:
    found = compress(learned, into=tmp_path / "run", dataset=demo)
    assert found.after["test"]["logloss"] - found.before["test"]["logloss"] <= 0.0005
    assert found.after["parameters"] < found.before["parameters"]
