"""The demo does what it promises."""

from __future__ import annotations

import pytest

from crossrank.data.generators.demo import PLANTED
from crossrank.errors import RunError
from crossrank.experiments.demo import run_demo, strongest_crosses
from crossrank.runs import Run


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo") / "out", say=lambda text: None)


@pytest.mark.slow
def test_dcn_v2_beats_the_dnn_which_beats_logistic_regression(result) -> None:
    losses = {model.name: model.logloss for model in result.models}
    assert result.best_logloss < losses["dcn-v2"] < losses["dnn"] - 0.003
    assert losses["dnn"] < losses["logistic-regression"] - 0.02


@pytest.mark.slow
def test_every_planted_cross_of_order_two_is_among_the_strongest_pairs(result) -> None:
    planted = {frozenset(cross) for cross in PLANTED if len(cross) == 2}
    assert frozenset(("country", "language")) in planted
    strongest = [
        frozenset(cross.name.split(" × ")) for cross in strongest_crosses(Run.open(result.run), top=len(planted))
    ]
    assert set(strongest) == planted


@pytest.mark.slow
def test_the_demo_folder_holds_the_log_and_its_schema_to_go_on_with(result) -> None:
    names = {path.name for path in result.run.parent.iterdir()}
    assert names == {"clicks.csv", "schema.json", "dataset", "logistic-regression", "dnn", "dcn-v2"}


def test_an_existing_demo_is_not_replaced_unless_asked(tmp_path) -> None:
    with pytest.raises(RunError, match="--overwrite"):
        run_demo(tmp_path)
