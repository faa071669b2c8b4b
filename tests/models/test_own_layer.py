"""Cross layers from outside crossrank: trained, saved, reopened and reported, explained or said not to be."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import Tensor, nn

import crossrank as cr
from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError
from crossrank.evaluation import explain_row
from crossrank.experiments.compress import compress
from crossrank.models import MODELS, Model, build_model, parse_model_settings, register_model
from crossrank.models.own import unexplained
from crossrank.nn import (
    BaseCrossLayer,
    CrossLayer,
    CrossNetwork,
    LowRankCrossLayer,
    MixtureCrossLayer,
    OutputLayer,
    VectorCrossLayer,
)
from crossrank.reports import write_report
from crossrank.runs import Run

TRAINING = {"batch_size": 128, "max_steps": 13, "log_every": 5, "learning_rate": 0.01, "patience": 0}
SILENT = r"Cross layers of the kind Gated do not tell their matrix.*give the class a method matrix\(xl\)"


class Gated(CrossLayer):
    """x0 ⊙ (W xl + b) ⊙ σ(V xl) + xl"""

    def __init__(self, input_dim: int) -> None:
        super().__init__(input_dim)
        self.gate = nn.Linear(input_dim, input_dim, bias=False)

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        return x0 * nn.functional.linear(xl, self.weight, self.bias) * self.gate(xl).sigmoid() + xl


class ToldGated(Gated):
    """The same, and it tells the mean of its matrix over the rows."""

    label = "gated"

    def matrix(self, xl: Tensor) -> Tensor:
        return self.gate(xl).sigmoid().mean(dim=0)[:, None] * self.weight


class Odd(nn.Module):
    """Nothing but a forward."""

    def __init__(self, input_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((input_dim,), 0.1))

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        return x0 * xl * self.weight + xl


@pytest.fixture(autouse=True)
def known_models():
    """Leave the models as they were."""
    before = dict(MODELS)
    yield
    MODELS.clear()
    MODELS.update(before)


def model_of(layer: type[nn.Module], *, plain: bool = False, call=None) -> type[Model]:
    class Own(Model):
        def __init__(self, layout, settings):
            super().__init__(layout)
            self.cross = CrossNetwork(layout.input_dim, num_layers=2, layer=CrossLayer if plain else layer)
            if plain:
                self.cross.layers[1] = layer(layout.input_dim)
            self.output = OutputLayer(layout.input_dim)

        def logits(self, x0):
            return self.output(call(self.cross, x0) if call else self.cross(x0))

    return Own


def trained(dataset: EncodedDataset, into, model: type[Model], **options) -> Run:
    register_model("own", about="a network of mine")(model)
    config = {"model": {"name": "own", "embedding": {"dim": 4}}, "training": TRAINING}
    return cr.train(dataset, into=into, config=config, **options)


def words(path) -> str:
    body = path.read_text(encoding="utf-8").split("<script>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_a_gated_layer_is_trained_saved_reopened_explained_and_reported(dataset, clicks, tmp_path, held) -> None:
    run = trained(dataset, tmp_path / "run", model_of(ToldGated))
    reopened = Run.open(run.path)
    torch.manual_seed(0)
    untrained = build_model(parse_model_settings(run.config["model"]), dataset.features)
    for name, tensor in held["model"].state_dict().items():
        assert torch.equal(tensor, reopened.model.state_dict()[name]), name
        assert name.startswith("label_") or not torch.equal(tensor, untrained.state_dict()[name]), name
    layer = reopened.model.cross.layers[0]
    sample = next(iter(dataset.valid.batches(4096, seed=0))).features
    weight = layer.matrix(reopened.model.embedding(sample)).detach()
    layout = run.model.layout
    for block in cr.explain(reopened, layer=1, directed=True):
        left, right = (layout[name].slice for name in block.features)
        assert block.norm == pytest.approx(weight[left, right].norm().item(), rel=1e-4)
    assert [one.initial[0] > 0 for one in reopened.spectrum] == [True, True]
    page = words(write_report(reopened))
    assert "own: a network of mine; 34 inputs; 2 gated cross layers." in page
    assert not reopened.unexplained
    row = clicks.row(5, named=True)
    found = explain_row(reopened, row)
    assert (found.method, found.difference) == ("exact", pytest.approx(0, abs=1e-4))


def test_a_layer_that_does_not_tell_its_matrix_keeps_its_run_and_the_report_says_so(dataset, clicks, tmp_path) -> None:
    with pytest.warns(UserWarning, match=SILENT) as told:
        run = trained(dataset, tmp_path / "run", model_of(Gated))
    assert [warning.filename for warning in told] == [__file__]
    assert (cr.explain(run), run.spectrum) == ([], [])
    assert re.fullmatch(SILENT + r"\.", run.unexplained[0])
    page = write_report(run)
    assert run.unexplained[0] in words(page) and "2 Gated cross layers" in words(page)
    assert '<section id="crosses">' in page.read_text(encoding="utf-8")
    assert explain_row(run, clicks.row(5, named=True)).method == "exact"  # derivatives need no matrix


def test_of_a_mixed_network_the_layers_that_tell_are_explained(dataset, tmp_path) -> None:
    with pytest.warns(UserWarning, match=SILENT):
        run = trained(dataset, tmp_path / "run", model_of(Gated, plain=True))
    assert {cross.layer for cross in cr.explain(run)} == {one.layer for one in run.spectrum} == {1}
    assert len(run.unexplained) == 1
    page = words(write_report(run))
    assert "1 full cross layers; 1 Gated cross layers" in page and run.unexplained[0] in page


def test_the_warning_comes_before_the_first_step(dataset, tmp_path, kill_at_step) -> None:
    kill_at_step(1)
    with pytest.warns(UserWarning, match=SILENT), pytest.raises(KeyboardInterrupt):
        trained(dataset, tmp_path / "run", model_of(Gated))


def test_a_layer_that_is_no_cross_layer_of_ours_keeps_its_run_too(dataset, tmp_path) -> None:
    with pytest.warns(UserWarning, match="kind Odd do not tell"):
        run = trained(dataset, tmp_path / "run", model_of(Odd, plain=True))
    assert "1 Odd cross layers" in words(write_report(run))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda cross, x0: cross.layers[0](x0=x0, xl=x0), "IndexError|ValueError|KeyError"),
        (lambda cross, x0: cross.layers[0](x0, x0), "KeyError"),
    ],
    ids=["by keyword", "not called"],
)
def test_layers_whose_use_cannot_be_followed_keep_their_run(dataset, tmp_path, call, reason) -> None:
    with pytest.warns(UserWarning, match="cross layers of Own cannot be explained") as told:
        run = trained(dataset, tmp_path / "run", model_of(CrossLayer, call=call))
    assert cr.explain(run) == []
    assert re.search(f"Own cannot be explained; ({reason})", run.unexplained[0])
    assert str(told[0].message) == run.unexplained[0]
    assert run.unexplained[0] in words(write_report(run))


def test_a_layer_that_looks_at_values_is_reported_without_its_cost(dataset, tmp_path) -> None:
    class Looking(CrossLayer):
        matrix = CrossLayer.matrix

        def forward(self, x0, xl):
            return super().forward(x0, xl) if xl.any() else xl

    run = trained(dataset, tmp_path / "run", model_of(Looking))
    assert cr.explain(run)
    page = words(write_report(run))
    assert "2 Looking cross layers" in page and "What run costs cannot be counted" in page


def test_a_matrix_that_fails_keeps_the_run(dataset, tmp_path) -> None:
    class Failing(Gated):
        def matrix(self, xl):
            raise RuntimeError("not today")

    with pytest.warns(UserWarning, match="RuntimeError: not today"):
        run = trained(dataset, tmp_path / "run", model_of(Failing))
    assert run.unexplained == ["The cross layers of Own cannot be explained; RuntimeError: not today"]


def test_a_forward_of_ones_own_does_not_inherit_what_its_parent_says() -> None:
    class WithGates(MixtureCrossLayer):  # other gates, the same formula
        def gates(self, xl):
            return super().gates(xl) / 2

    class Mixin:
        def forward(self, x0, xl):
            return x0 + xl

    class Mixed(Mixin, CrossLayer):
        pass

    class Restated(Gated):
        def forward(self, x0, xl):
            return 1.0 * super().forward(x0, xl)

        matrix = CrossLayer.matrix

    class Below(ToldGated):
        pass

    class Kinked(MixtureCrossLayer):
        def forward(self, x0, xl):
            return super().forward(x0, xl)

    said = {kind: (kind.label, kind.matrix is not BaseCrossLayer.matrix) for kind in (CrossLayer, ToldGated, Below)}
    assert said == {CrossLayer: ("full", True), ToldGated: ("gated", True), Below: ("gated", True)}
    for kind, label, tells in [(Gated, "Gated", False), (Mixed, "Mixed", False), (Restated, "Restated", True)]:
        layer = kind(3)
        assert (layer.label, layer.tells_matrix) == (label, tells)
    with pytest.raises(ConfigError, match=r"must tell its matrix; Gated has no matrix\(xl\) of its own"):
        Gated(3).matrix(torch.ones(1, 3))
    mixture = {"rank": 1, "num_experts": 2}
    assert (WithGates(3, **mixture).label, WithGates(3, **mixture).tells_matrix) == ("mixture", True)
    assert [kind(3, **mixture, activation="relu").is_smooth for kind in (MixtureCrossLayer, WithGates, Kinked)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "layer",
    [CrossLayer(3), LowRankCrossLayer(3, rank=1), VectorCrossLayer(3), MixtureCrossLayer(3, rank=1, num_experts=2)],
    ids=lambda layer: layer.label,
)
def test_every_layer_of_ours_tells_its_matrix_and_a_label(layer) -> None:
    assert layer.tells_matrix and layer.is_smooth
    assert layer.matrix(torch.randn(5, 3)).shape == (3, 3)
    assert layer.label in ("full", "low-rank", "vector", "mixture")


def test_a_network_takes_a_class_and_its_options() -> None:
    network = CrossNetwork(4, num_layers=2, layer=Gated)
    assert [type(layer) for layer in network.layers] == [Gated, Gated]
    with pytest.raises(
        ConfigError, match="A 'Gated' cross layer takes none; got an unexpected keyword argument 'rank'"
    ):
        CrossNetwork(4, num_layers=1, layer=Gated, rank=2)
    with pytest.raises(ConfigError, match=r"or a class below BaseCrossLayer; got <class 'torch.nn"):
        CrossNetwork(4, num_layers=1, layer=nn.Linear)


def test_a_row_whose_products_cannot_be_removed_is_refused_with_the_reason(dataset, clicks, tmp_path) -> None:
    class Kinked(Gated):
        is_smooth = False

        def forward(self, x0, xl):
            return super().forward(x0, xl).relu()

    with pytest.warns(UserWarning, match="kind Kinked"):
        run = trained(dataset, tmp_path / "run", model_of(Kinked))
    with pytest.raises(ConfigError, match=r"What Own makes of a row cannot be split.*kind Kinked do not tell"):
        explain_row(run, clicks.row(5, named=True))


@pytest.mark.parametrize("layer", [ToldGated, CrossLayer])
def test_layers_that_no_setting_describes_are_not_compressed(dataset, tmp_path, layer) -> None:
    run = trained(dataset, tmp_path / "run", model_of(layer))
    with pytest.raises(ConfigError, match=rf"that model\.cross describes.*got {layer.label} cross layers"):
        compress(run, into=tmp_path / "small", rank=2)


def test_models_of_ours_have_nothing_to_warn_about(dataset) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("dcn-v2", "dcn-mix", "dcn", "dnn"):
            assert unexplained(build_model(parse_model_settings({"name": name}), dataset.features)) == []
