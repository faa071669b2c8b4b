"""Each experiment writes its page, its numbers and its figure."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import crossrank
from crossrank.errors import ConfigError, MissingExtraError
from crossrank.experiments.paper import (
    EXPERIMENTS,
    combined,
    homogeneous,
    list_experiments,
    polynomials,
    run_experiment,
)
from crossrank.experiments.paper.fitting import model_size
from crossrank.experiments.paper.page import Page, write_page

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def test_every_experiment_has_a_name_a_line_and_a_cost():
    for experiment in list_experiments():
        assert EXPERIMENTS[experiment.name] is experiment
        assert experiment.about and experiment.cost
        assert callable(experiment.function)


def test_an_experiment_writes_a_page_numbers_and_a_figure(tmp_path):
    page = run_experiment("theorems", tmp_path, quick=True)
    text = (tmp_path / "theorems.md").read_text()
    assert text.startswith(f"# {page.title}\n")
    assert "The quick version" in text
    assert "`crossrank paper theorems --quick`" in text and f"crossrank {crossrank.__version__}" in text
    assert "![Theorems 1 and 2: a cross network is a polynomial](theorems.svg)" in text
    values = json.loads((tmp_path / "theorems.json").read_text())
    assert values["machine"]["torch"] == torch.__version__
    assert len(values["networks"]) == 3
    assert "<svg" in (tmp_path / "theorems.svg").read_text()


def test_both_theorems_hold_to_rounding(tmp_path):
    run_experiment("theorems", tmp_path)
    for network in json.loads((tmp_path / "theorems.json").read_text())["networks"]:
        assert max(network[key] for key in ("coefficients", "theorem_1", "theorem_2")) < 1e-13
        assert network["highest_order"] == network["num_layers"] + 1


def test_the_same_experiment_gives_the_same_figure(tmp_path):
    for folder in ("a", "b"):
        run_experiment("theorems", tmp_path / folder, quick=True)
    assert (tmp_path / "a/theorems.svg").read_bytes() == (tmp_path / "b/theorems.svg").read_bytes()


def test_an_experiment_does_not_touch_the_callers_random_numbers(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run_experiment("theorems", tmp_path, quick=True)
    assert torch.equal(torch.rand(3), expected)


def test_the_table_of_polynomials_has_our_numbers_beside_the_papers(tmp_path, monkeypatch):
    several = {"mean": 1.5e-3, "deviation": 2e-4, "starts": [[1e-3, 2e-3], [2e-3, 4e-3]]}
    found = {"rmse": several, "size": 24, "by": "L-BFGS (2 of 2)"}
    monkeypatch.setattr(polynomials, "fit", lambda cell: found)
    page = polynomials.run(quick=True)
    write_page(page, tmp_path, "polynomials", command="crossrank paper polynomials", seconds=1)
    assert "quick version" not in (tmp_path / "polynomials.md").read_text()
    (table,) = page.tables.values()
    ours = ["3.00e-03", "2", "L-BFGS (2 of 2)", "24"]
    assert ["f2", "DCN-V2", "1.50e-03 ± 2e-04", "4.5e-15", *ours, "15"] in list(map(list, table))
    assert ["f1", "DCN (V1 layer)", "1.50e-03 ± 2e-04", "", *ours, ""] in list(map(list, table))
    assert len(table) == 1 + 3 * 5


@pytest.mark.parametrize(("module", "rows"), [(combined, 4), (homogeneous, 5)])
def test_fits_of_every_depth_make_a_table_and_a_figure(module, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "fit_fresh", lambda make, function, **options: [[float(model_size(make()))]] * 2)
    page: Page = module.run(quick=True)
    write_page(page, tmp_path, "name", command="crossrank paper name", seconds=1)
    for table in page.tables.values():
        assert {len(row) for row in table} == {1 + len(module.DEPTHS)}
        assert len(table) == 1 + rows
        sizes = [float(cell.partition(" ")[0]) for cell in table[1][1:]]
        assert sizes == sorted(sizes) and sizes[0] < sizes[-1], "deeper networks stand further right"
    assert "<svg" in (tmp_path / "name.svg").read_text()


def test_no_row_of_combined_is_a_corner(monkeypatch):
    given = []
    monkeypatch.setattr(combined, "fit_fresh", lambda make, function, **options: given.append(options) or [[1.0]])
    combined.run(quick=True)
    assert len(given) == 10 and not any(options.get("corners") for options in given)


def test_who_gets_corners_is_what_the_page_says():
    cornered = [name for name, training in homogeneous.models(50, 3).items() if training.corners]
    assert cornered == ["DCN-V2", "DCN-V2 without bias"]
    assert "every other row of DCN-V2, with and without bias, is a corner" in homogeneous.TEXT[0]


def test_the_combined_function_is_its_parts():
    generator = torch.Generator().manual_seed(0)
    function = combined.CombinedFunction(runs=2, generator=generator)
    assert function.sine.norm(dim=1).flatten().tolist() == pytest.approx([0.3, 0.3])
    x = torch.zeros(2, 20_000, 50)  # where all monomials vanish, the noise and the sine's constant are left
    values = function(x)
    assert values.mean().item() == pytest.approx(0.1 * torch.tensor(0.1).sin().item(), abs=5e-4)
    assert values.std().item() == pytest.approx(0.01, rel=0.05)


def test_an_unknown_experiment_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'polynomials'"):
        run_experiment("polynomial", tmp_path)


def test_the_extra_is_asked_for_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"crossrank\[plots\]"):
        run_experiment("polynomials", tmp_path)
