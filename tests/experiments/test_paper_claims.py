"""The committed pages show what the paper claims, and the map of the paper names what there is."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crossrank.experiments.paper import EXPERIMENTS
from crossrank.experiments.paper.criteo import NUM_CATEGORICAL, NUM_NUMERIC
from crossrank.experiments.paper.movielens import BAR

ROOT = Path(__file__).parents[2]
PAGES, MAP = ROOT / "docs" / "paper", ROOT / "docs" / "paper.md"


def page(name: str) -> dict[str, Any]:
    return json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))


def losses(name: str, metric: str = "logloss") -> dict[str, float]:
    return {label: found[metric]["mean"] for label, found in page(name)["settings"].items()}


def errors(found: list[dict[str, Any]]) -> list[float]:
    return [cell["mean"] for cell in found]


def polynomials() -> dict[str, dict[str, float]]:
    functions = page("polynomials")["functions"]
    return {name: {model: cell["rmse"]["mean"] for model, cell in cells.items()} for name, cells in functions.items()}


def test_one_cross_layer_is_exact_where_dcn_fails():
    for name, printed in (("f1", 5.1e-13), ("f2", 4.5e-15), ("f3", 6.7e-7)):
        assert polynomials()[name]["DCN-V2"] <= printed
    assert polynomials()["f1"]["DCN"] < 8.9e-13
    assert polynomials()["f2"]["DCN"] >= 0.1 and polynomials()["f3"]["DCN"] >= 2.6


def test_where_a_model_cannot_follow_its_best_start_counts():
    functions = page("polynomials")["functions"]
    for run in functions["f2"]["DCN"]["rmse"]["starts"]:
        assert run[0] < 0.26 and max(run) > 0.33 and len(run) == 20
    assert functions["f2"]["DCN (V1 layer)"]["rmse"]["mean"] < 0.2
    assert functions["f1"]["DNN"]["rmse"]["mean"] < 0.095


def test_deep_networks_are_orders_of_magnitude_behind_on_polynomials():
    for found in polynomials().values():
        assert found["DNN"] > found["DNN (large)"] > 1e9 * found["DCN-V2"]
    for name in ("f2", "f3"):
        assert polynomials()[name]["DCN"] > polynomials()[name]["DNN"], "the paper's order in every cell"


@pytest.mark.parametrize("order", [3, 4])
def test_without_bias_and_residual_an_order_is_learned_at_its_own_depth(order):
    found = errors(page("homogeneous")[f"order {order}"]["DCN-V2 without bias and residual"])
    own = found.pop(order - 2)
    assert own < 0.06 and min(found) > 3 * own


@pytest.mark.parametrize("order", [3, 4])
def test_bias_and_residual_keep_an_order_at_greater_depth(order):
    cells = page("homogeneous")[f"order {order}"]
    whole, bare = errors(cells["DCN-V2"]), errors(cells["DCN-V2 without bias and residual"])
    assert whole[3] < bare[3] if order == 4 else max(whole[2:]) < min(bare[2:])
    assert max(whole[order - 2 :]) < 0.5 * min(whole[: order - 2])


@pytest.mark.parametrize("order", [3, 4])
def test_dcn_does_not_follow_homogeneous_polynomials(order):
    cells = page("homogeneous")[f"order {order}"]
    assert min(errors(cells["DCN"])) > 3 * min(errors(cells["DCN-V2"]))


def test_combined_orders_are_learned_from_three_layers_on():
    cross, deep = (errors(page("combined")["models"][name]) for name in ("DCN-V2", "DNN"))
    assert cross[0] > 2 * cross[1] > 4 * cross[2] > 4 * max(cross[3:])
    assert cross[2] < 1.2e-2 and max(cross[3:]) < 1.06e-2, "the noise alone is 1e-2"
    assert deep[0] < cross[0] and min(deep[1:]) > 2 * cross[1], "the paper's order in every column"


def test_higher_orders_alone_are_better_than_the_second():
    found = losses("interaction-alone")
    second = min(found.pop("PNN"), found.pop("FM"))
    assert max(found.values()) < second


def test_the_cross_network_alone_is_as_good_as_any():
    found = {label: values["logloss"] for label, values in page("interaction-alone")["settings"].items()}
    ours = found["CrossNet-Mix"]
    for other in found.values():
        assert ours["mean"] - other["mean"] < 2 * math.hypot(ours["deviation"], other["deviation"])


def test_the_papers_best_is_met_on_movielens():
    found = page("movielens")["models"]
    for name in ("DCN-V2", "DCN-Mix"):
        assert found[name]["logloss_over_splits"]["mean"] <= BAR["logloss"]
        assert found[name]["auc_over_splits"]["mean"] >= BAR["auc"]
        for baseline in ("DeepFM", "DLRM", "xDeepFM", "AutoInt+", "DCN", "DNN"):
            assert found[name]["logloss_over_splits"]["mean"] < found[baseline]["logloss_over_splits"]["mean"]


def test_dcn_v2_is_better_than_most_baselines_on_rows_like_criteo():
    found = losses("criteo")
    for baseline in ("DeepFM", "DLRM", "xDeepFM", "AutoInt+", "DCN", "DNN"):
        assert max(found["DCN-V2"], found["CrossNet"]) < found[baseline]
    assert min(found, key=found.__getitem__) == "CrossNet"


def test_cross_layers_are_better_at_every_budget():
    for (cross, ours), (deep, theirs) in list(pairwise(losses("memory").items()))[::2]:
        assert cross.startswith("CrossNet") and deep == cross.replace("CrossNet", "DNN")
        assert ours < theirs


def test_depth_helps_by_less_and_less_and_passes_the_dnn_at_three_layers():
    found = list(losses("depth").values())
    cross, deep = found[::2], found[1::2]
    gains = [before - after for before, after in pairwise(cross)]
    assert gains == sorted(gains, reverse=True) and gains[-1] > 0
    assert [ours < theirs for ours, theirs in zip(cross, deep, strict=True)] == [False, False, True, True, True]


def test_rank_saturates_near_the_number_of_features():
    found = losses("rank")
    features = NUM_CATEGORICAL + NUM_NUMERIC
    ranks = {int(label.removeprefix("rank ")): loss for label, loss in found.items() if label != "full"}
    small = min(ranks)
    near = ranks[min(ranks, key=lambda rank: abs(rank - features))]
    best = min(found.values())
    assert ranks[small] - near > 2 * (near - best) > 0
    assert max(loss for rank, loss in ranks.items() if rank > features) - best < 0.002


def test_a_quarter_of_the_input_width_is_rank_enough():
    found = page("rank")["settings"]
    width = found["full"]["config"]["model"]["embedding"]["dim"] * NUM_CATEGORICAL + NUM_NUMERIC
    assert found[f"rank {width // 4}"]["logloss"]["mean"] < found["full"]["logloss"]["mean"] + 0.001


def test_several_experts_are_much_alike():
    several = list(losses("experts").values())[1:]
    assert max(several) - min(several) < 0.004


def test_cross_layers_are_better_than_relu_layers_of_their_size():
    found = losses("relu")
    assert found["2 cross layers"] < found["1 cross layer"] < found["2 ReLU layers"] < found["1 ReLU layer"]


def test_the_learned_matrix_has_a_lower_rank_than_the_initial_one():
    for layer in page("understanding")["spectrum"]:
        learned, initial = (
            sum(value >= 0.5 * layer[kind][0] for value in layer[kind]) for kind in ("values", "initial")
        )
        assert learned < 0.5 * initial


def test_the_strongest_cross_on_movielens_is_user_and_movie():
    text = (PAGES / "understanding.md").read_text(encoding="utf-8")
    moving = text.split("how far they move the logit:")[1]
    assert moving.splitlines()[4].startswith("| user × movie ")


def test_the_map_names_tests_pages_files_and_commands_that_exist():
    text = MAP.read_text(encoding="utf-8")
    tests = re.findall(r"`([a-z_]+/test_\w+\.py)::(test_\w+)`", text)
    assert len(tests) > 60
    for file, name in tests:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name}"
    for link in re.findall(r"\]\(([\w/.-]+\.md)\)", text):
        assert (MAP.parent / link).is_file(), link
    for file in re.findall(r"`((?:nn|models|data|training|evaluation|experiments|schema)/[\w/]+\.py)[`:]", text):
        assert (ROOT / "src/crossrank" / file).is_file() or (ROOT / "tests" / file).is_file(), file
    assert set(re.findall(r"crossrank paper ([\w-]+)", text)) - {"list"} == set(EXPERIMENTS)
    assert "page to come" not in text
