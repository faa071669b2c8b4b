"""What is left out of a configuration suits the rows; what is written stays."""

from types import SimpleNamespace
from typing import Any

import pytest

from crossrank.models import MODELS
from crossrank.schema import Feature, Numeric
from crossrank.training import Config
from crossrank.training.defaults import fill_in


class Rows(int):
    """A split of so many rows."""

    def __len__(self) -> int:
        return int(self)

    def num_batches(self, batch_size: int) -> int:
        return -(-self // batch_size)


def filled(values: dict[str, Any], *, rows: int, kind: str = "binary", ids: int = 100) -> Config:
    features = [Feature("user", "categorical", ids)] if ids else []
    features.append(Feature("age (value)", "categorical", 9999, column="age"))
    schema = SimpleNamespace(label=SimpleNamespace(kind=kind), numeric=[Numeric(name="age")])
    dataset: Any = SimpleNamespace(train=Rows(rows), schema=schema, features=features)
    return Config.parse(fill_in(values, dataset))


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_many_rows_are_learned_with_the_papers_values(kind) -> None:
    assert filled({}, rows=500_000, kind=kind) == Config.parse({})


def test_large_batches_have_larger_steps_the_first_of_which_grow() -> None:
    training = filled({"training": {"batch_size": 65_536}}, rows=8_600_000).training
    assert (training.learning_rate, training.table_learning_rate, training.warmup_steps) == (0.008, 0.016, 0)
    assert (training.ramp, training.average_decay) == (0.5, 0.9318)  # a ninth of an epoch
    for written in ({"ramp": 0.0}, {"schedule": "cosine"}):
        training = filled({"training": {"batch_size": 16_384, **written}}, rows=10**6).training
        assert (training.learning_rate, training.table_learning_rate, training.warmup_steps) == (0.0028, 0.008, 30)
        assert (training.ramp, training.average_decay) == (0.0, 0.9999)
    for written in ({"batch_size": 4096}, {"batch_size": 65_536, "learning_rate": 0.01}):
        assert filled({"training": written}, rows=10**6) == Config.parse({"training": written})


def test_rows_that_are_compared_by_pairs_are_learned_as_before() -> None:
    ranking = {"training": {"loss": "pairwise"}}
    assert filled(ranking, rows=10_000) == Config.parse(ranking)


@pytest.mark.parametrize("rows", [1000, 40_000])
def test_grades_are_learned_with_noise_however_few_they_are(rows) -> None:
    config = filled({"training": {"loss": "lambdarank"}}, rows=rows, kind="grade")
    steps = -(-rows // 256)
    assert (config.training.batch_size, config.training.learning_rate) == (256, 0.001)
    assert config.training.eval_every == max(20, steps // 4)
    assert (config.model.structure, config.model.embedding.dropout, config.model.deep.dropout) == ("parallel", 0.2, 0.4)
    assert filled({}, rows=500_000, kind="grade") == Config.parse({})


@pytest.mark.parametrize("loss", ["lambdarank", "listwise"])
def test_a_binary_label_whose_order_is_learned_has_the_papers_values(loss) -> None:
    assert filled({"training": {"loss": loss}}, rows=10_000) == Config.parse({"training": {"loss": loss}})


def test_fewer_rows_are_learned_with_noise_and_looked_at_more_often() -> None:
    config = filled({}, rows=40_000)
    training, model = config.training, config.model
    assert (training.batch_size, training.learning_rate, training.epochs) == (256, 0.001, 25)
    assert (training.eval_every, training.patience) == (60, 4)  # 157 steps in a pass
    assert training.average_decay == pytest.approx(0.99)
    assert (model.structure, model.embedding.dropout, model.deep.dropout) == ("parallel", 0.2, 0.4)
    assert filled({}, rows=400_000).training.eval_every == 390  # four times in 1,563 steps


@pytest.mark.parametrize(("rows", "l2"), [(1000, 3e-4), (10_000, 3e-4), (40_000, 7.5e-5), (10**6, 0.0)])
def test_kernels_shrink_by_how_few_rows_there_are_where_most_columns_are_numbers(rows, l2) -> None:
    assert filled({}, rows=rows, ids=0).training.l2 == l2
    assert filled({}, rows=rows).training.l2 == 0  # as many ids as numbers


@pytest.mark.parametrize(
    "model", [{"name": "fm"}, {"name": "logistic-regression"}, {"name": "deepfm", "deep": {"sizes": []}}]
)
def test_models_without_kernels_have_no_penalty(model) -> None:
    assert filled({"model": model}, rows=10_000, ids=0).training.l2 == 0


def test_only_two_classes_have_a_penalty_and_more_patience() -> None:
    found = {kind: filled({}, rows=10_000, kind=kind, ids=0).training for kind in ("binary", "classes", "grade")}
    assert [(one.l2, one.patience) for one in found.values()] == [(3e-4, 8), (0, 4), (0, 4)]


@pytest.mark.parametrize(("kind", "dropout"), [("binary", 0.1), ("classes", 0.4)])
def test_numbers_alone_are_learned_with_less_noise(kind, dropout) -> None:
    model = filled({}, rows=40_000, kind=kind, ids=0).model
    assert (model.embedding.dropout, model.deep.dropout) == (0.2, dropout)


@pytest.mark.parametrize(("rows", "every"), [(300, 15), (1000, 32), (1920, 60), (4095, 60)])
def test_very_short_tables_are_looked_at_every_other_pass(rows, every) -> None:
    assert filled({}, rows=rows).training.eval_every == every


def test_short_tables_are_read_as_often_as_makes_enough_steps() -> None:
    assert filled({}, rows=5000).training.epochs == 100  # of 20 steps
    assert filled({}, rows=1000).training.epochs == 125  # of 16 steps
    assert filled({}, rows=20).training.epochs == 2000  # of one step


@pytest.mark.parametrize(("rows", "batch_size"), [(2, 64), (4095, 64), (4096, 256)])
def test_the_batches_of_few_rows_are_small(rows, batch_size) -> None:
    assert filled({}, rows=rows).training.batch_size == batch_size


def test_the_weights_are_averaged_over_a_pass_where_it_is_short() -> None:
    assert filled({"training": {"batch_size": 4096}}, rows=40_960).training.average_decay == pytest.approx(0.9)
    assert filled({"training": {"batch_size": 65_536}}, rows=40_960).training.average_decay == pytest.approx(0.5)


@pytest.mark.parametrize(("ids", "decay"), [(10, 0.0), (400, 0.1), (4000, 1.0), (40_000, 3.0)])
def test_embedding_rows_shrink_the_more_the_less_often_ids_are_seen(ids, decay) -> None:
    assert filled({}, rows=40_000, ids=ids).training.table_decay == decay


def test_no_average_is_left_behind_by_rows_that_shrink() -> None:
    slow = {"training": {"average_decay": 0.9999, "learning_rate": 0.01}}
    assert filled(slow, rows=40_000, ids=9000).training.table_decay == pytest.approx(0.005)
    assert filled({"training": {"average_decay": 0.0}}, rows=40_000, ids=90_000).training.table_decay == 3


@pytest.mark.parametrize(("rows", "epochs", "patience"), [(2000, 750, 75), (20_000, 76, 7), (2_000_000, 10, 2)])
def test_a_number_is_learned_in_6000_steps_at_least(rows, epochs, patience) -> None:
    training = filled({}, rows=rows, kind="real").training
    assert (training.epochs, training.patience, training.batch_size) == (epochs, patience, 256)
    assert filled({}, rows=rows, kind="real").model == Config.parse({"model": {"embedding": {"dropout": 0.3}}}).model
    assert filled({"training": {"batch_size": 1}}, rows=6000, kind="real").training.epochs == 10


def test_what_is_written_stays() -> None:
    written = {
        "training": {"batch_size": 64, "learning_rate": 0.02, "epochs": 1, "eval_every": 7, "patience": 0, "l2": 0.5}
        | {"average_decay": 0.5, "table_decay": 0.25},
        "model": {"structure": "stacked", "embedding": {"dim": 4, "dropout": 0.0}, "deep": {"dropout": 0.1}},
    }
    for rows in (100, 40_000):
        for kind in ("binary", "real"):
            assert filled(written, rows=rows, kind=kind, ids=9000) == Config.parse(written)


def test_a_part_of_a_model_keeps_what_is_not_written_of_it() -> None:
    model = filled({"model": {"embedding": {"dim": 4}}}, rows=40_000).model
    assert (model.embedding.dim, model.embedding.dropout) == (4, 0.2)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["binary", "real"])
def test_every_model_is_given_only_what_it_has(name, kind) -> None:
    config = filled({"model": {"name": name}}, rows=40_000, kind=kind)
    assert config.model.name == name
    if name.startswith("cross-net"):
        assert config.model.structure == "cross-only"
