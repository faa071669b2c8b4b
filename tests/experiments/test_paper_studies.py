"""Tables of trained models: the studies on Criteo, MovieLens-1M, and what DCN-V2 learns there."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from crossrank.data.generators.synthetic import synthesize
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError
from crossrank.experiments.paper import criteo, movielens, run_all, run_experiment, studies, successors, understanding
from crossrank.experiments.paper.criteo_studies import MEMORY, QUALITY, STUDIES
from crossrank.experiments.paper.page import write_page
from crossrank.experiments.paper.table6 import CRITEO, two_digits
from crossrank.models import parse_model_settings
from crossrank.models.cost import model_cost
from crossrank.runs import Run
from crossrank.training import Config

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

TINY = {"model": {"name": "dnn", "embedding": {"dim": 2}, "deep": {"sizes": [4]}}, "training": {"max_steps": 2}}
CROSS = {**TINY, "model": {"name": "dcn-v2", "embedding": {"dim": 2}, "deep": {"sizes": [4]}}}


def measured(dataset, config, folder, seeds=2):
    return studies.measure_tasks(
        studies.tasks(dataset, [studies.Setting(label="A DNN, small", config=config)], folder, seeds=seeds), jobs=1
    )[0]


def test_a_setting_is_trained_once_and_again_where_it_has_changed(dataset, tmp_path, monkeypatch):
    found = measured(dataset, TINY, tmp_path)
    values = [Run.open(tmp_path / "a-dnn-small" / f"seed-{seed}").report["test"]["auc"] for seed in range(2)]
    assert found["auc"]["values"] == values
    assert found["auc"]["mean"] == pytest.approx(statistics.fmean(values))
    assert found["parameters"] == model_cost(Config.parse(TINY).model, dataset.features).network_parameters
    with monkeypatch.context() as patch:
        patch.setattr(studies, "train_seeds", None)
        assert measured(dataset, TINY, tmp_path) == found
    assert measured(dataset, {**TINY, "training": {"max_steps": 3}}, tmp_path)["auc"]["values"] != values
    assert len(measured(dataset, TINY, tmp_path, seeds=3)["auc"]["values"]) == 3


def test_what_was_measured_is_kept_without_its_runs_and_belongs_to_its_rows(dataset, clicks, tmp_path, monkeypatch):
    found = measured(dataset, TINY, tmp_path / "here")
    kept = tmp_path / "there" / "a-dnn-small"
    kept.mkdir(parents=True)
    shutil.copy(tmp_path / "here" / "a-dnn-small" / "measured.json", kept)
    other = prepare(clicks.head(500), dataset.schema, tmp_path / "other", progress=False)
    monkeypatch.setattr(studies, "train_seeds", lambda *_, **__: pytest.fail("trained"))
    assert measured(dataset, TINY, tmp_path / "there") == found
    with pytest.raises(pytest.fail.Exception, match="trained"):
        measured(other, TINY, tmp_path / "there")


def test_studies_on_generated_rows_need_neither_tables_nor_plots_nor_a_command_line(tmp_path):
    program = """
import sys
sys.modules.update(dict.fromkeys(("polars", "typer", "matplotlib", "optuna")))
from pathlib import Path
from crossrank.experiments.paper.criteo import run_study
from crossrank.experiments.paper.criteo_studies import STUDIES
run_study(STUDIES["relu"], quick=True, work=Path(sys.argv[1]), jobs=1)
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
    page = criteo.run_study(STUDIES["relu"], quick=True, work=tmp_path, jobs=1)
    assert len(page.values["settings"]) == 4
    assert [run.parent.name for run in page.runs] == [
        "1-relu-layer",
        "1-cross-layer",
        "2-relu-layers",
        "2-cross-layers",
    ]


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize(
    "scale", [criteo.PAPER_SCALE, criteo.GENERATED, criteo.QUICK], ids=["paper", "generated", "quick"]
)
def test_every_setting_of_every_study_can_be_built(name, scale):
    study = STUDIES[name]
    features = CRITEO.features if study.numeric else CRITEO.features[:26]
    settings = study.settings(scale)
    assert len({setting.label for setting in settings}) == len(settings) > 1
    for setting in settings:
        config = Config.parse(setting.config)
        assert model_cost(config.model, features).network_parameters > 0


def test_at_the_papers_scale_the_settings_are_the_papers():
    by_label = {setting.label: setting for setting in STUDIES["criteo"].settings(criteo.PAPER_SCALE)}
    for row in CRITEO.rows:
        settings = parse_model_settings(by_label[row.label].config["model"])
        assert two_digits(model_cost(settings, CRITEO.features).network_parameters) == two_digits(
            CRITEO.cost(row).network_parameters
        )
    assert set(by_label) == set(QUALITY)


def test_the_memory_study_compares_models_of_the_budget():
    settings = STUDIES["memory"].settings(criteo.PAPER_SCALE)
    for setting in settings:
        budget = float(setting.label.rsplit(" ", 1)[1])
        parameters = model_cost(Config.parse(setting.config).model, CRITEO.features).network_parameters
        assert parameters == pytest.approx(budget, rel=0.03)
    assert len(settings) == 2 * len(MEMORY)


def test_a_study_runs_on_generated_rows_and_knows_the_truth(tmp_path):
    page = run_experiment("relu", tmp_path / "pages", quick=True, work=tmp_path / "work")
    assert len(page.values["settings"]) == 4
    truth = json.loads((tmp_path / "work/criteo-quick/dataset.truth.json").read_text())
    assert (
        f"the log loss of the truth itself is {truth['best_logloss']:.4f}" in (tmp_path / "pages/relu.md").read_text()
    )
    assert all(found["logloss"]["mean"] > truth["best_logloss"] for found in page.values["settings"].values())
    text = (tmp_path / "pages/relu.md").read_text()
    assert "`crossrank paper relu --quick`" in text and str(tmp_path) not in text


def test_a_study_with_lines_draws_them(tmp_path):
    study = STUDIES["depth"]
    settings = study.settings(criteo.QUICK)
    spread = {"mean": 0.45, "deviation": None, "values": [0.45]}
    found = {s.label: {"logloss": spread, "auc": spread, "parameters": 7, "flops": 14} for s in settings}
    page = criteo._page(study, settings, found, ["text"], None)
    write_page(page, tmp_path, "depth", command="crossrank paper depth", seconds=1)
    figure = (tmp_path / "depth.svg").read_text()
    assert ">CrossNet<" in figure and ">DNN<" in figure and ">layers<" in figure


def test_a_study_runs_on_a_users_own_train_txt(tmp_path, monkeypatch):
    synthesize(tmp_path / "train.txt", rows=2000, progress=False)
    monkeypatch.setattr(criteo, "PAPER_SCALE", criteo.QUICK)
    page = run_experiment("relu", tmp_path / "pages", data=tmp_path / "train.txt", work=tmp_path / "work", jobs=1)
    text = (tmp_path / "pages/relu.md").read_text()
    assert "2,000 rows of Criteo, split as the paper does. Embeddings" in text and "truth" not in text
    assert "`crossrank paper relu --data criteo=train.txt`" in text
    assert page.values["best_logloss"] is None
    assert (tmp_path / "work/criteo/dataset/manifest.json").is_file()


def noted(name, losses, scale=criteo.GENERATED):
    """The findings of a study whose settings have these log losses, in their order."""
    study = STUDIES[name]
    settings = study.settings(scale)
    found = {}
    for setting, loss in zip(settings, losses, strict=True):
        spread = {"logloss": {"mean": loss, "deviation": 0.0}, "auc": {"mean": 1 - loss, "deviation": 0.0}}
        found[setting.label] = {**spread, "config": setting.config, "parameters": 1, "flops": 2, "device": "CPU"}
    return "\n".join(criteo._page(study, settings, found, [], None).notes)


def test_findings_are_read_off_the_numbers():
    depth = noted("depth", [0.5, 0.45, 0.46, 0.44, 0.43, 0.44, 0.42, 0.44, 0.42, 0.44])
    assert "CrossNet: what each step along the axis gains: +0.0400, +0.0300, +0.0100, +0.0000." in depth
    assert "CrossNet is better than DNN at layers 3, 4, 5." in depth
    rank = noted("rank", [0.46, 0.45, 0.44, 0.43, 0.42, 0.42, 0.42, 0.425])
    assert "A rank of 55, a quarter of the input width 221, against the full matrix: -0.0050." in rank
    relu = noted("relu", [0.40, 0.39, 0.396, 0.38])
    assert "Best first: 2 cross layers 0.3800, 1 cross layer 0.3900, 2 ReLU layers 0.3960" in relu
    assert "1 cross layer -2.5%, 2 ReLU layers -1.0%, 2 cross layers -5.0%" in relu


@pytest.fixture
def small_table(dataset, monkeypatch):
    """The table of MovieLens with three models on other rows."""
    labels = ("DNN", "DCN-V2", "DCN-Mix")
    monkeypatch.setattr(movielens, "PAPER", {label: movielens.PAPER[label] for label in labels})
    monkeypatch.setattr(movielens, "committed", lambda: {"DNN": TINY, "DCN-V2": CROSS, "DCN-Mix": CROSS})
    monkeypatch.setattr(understanding, "committed", lambda: {"DNN": TINY, "DCN-V2": CROSS, "DCN-Mix": CROSS})
    for module in (movielens, understanding):
        monkeypatch.setattr(module, "split_dataset", lambda data, work, split, quick: dataset)
    few_successors(monkeypatch)


def few_successors(monkeypatch):
    few = {label: row for label, row in successors.models((4,)).items() if label in ("PNN", "DCN-V2", "GDCN")}
    monkeypatch.setattr(successors, "models", lambda deep: few)


def test_the_table_of_movielens_has_both_protocols(small_table, tmp_path):
    options = {"work": tmp_path / "work", "data": Path("a/ml-1m.zip"), "jobs": 1}
    page = run_experiment("movielens", tmp_path / "pages", quick=True, **options)
    quality, splits, later = page.tables.values()
    assert [row[0] for row in quality] == ["model", "DNN", "DCN-V2", "DCN-Mix"]
    assert [row[0] for row in later] == ["model", "PNN", "DCN-V2", "GDCN"]
    values = page.values["successors"]["GDCN"]
    assert len(values["logloss"]["values"]) == 2 and values["logloss_against_PNN"]["mean"] != 0
    work = tmp_path / "work/movielens-quick"
    assert json.loads((work / "successors.json").read_text()) == page.values["choices"]
    run = Run.open(work / "successors-2/gdcn/seed-0")
    assert run.report["test"]["logloss"] == values["logloss"]["values"][1]
    assert run.config["training"]["learning_rate"] == page.values["choices"]["GDCN"]["learning_rate"]
    assert quality[2][2::2] == ["0.3170", "0.8950", "110K", "220K"]
    assert splits[2][2] == "" and splits[1][2].startswith(("+", "-"))
    assert splits[3][2] == "+0.0000 ± 0.0000", "the same model on the same splits"
    assert len(page.values["models"]["DNN"]["logloss_over_splits"]["values"]) == 2
    text = (tmp_path / "pages/movielens.md").read_text()
    assert "not met" in text and "`crossrank paper movielens --quick --data movielens-1m=ml-1m.zip`" in text


def test_a_search_finds_settings_for_the_table(dataset, tmp_path, monkeypatch):
    pytest.importorskip("optuna", reason="optuna is not installed")
    monkeypatch.setattr(movielens, "committed", lambda: {"DNN": TINY})
    settings = movielens.searched(dataset, tmp_path, quick=True)
    assert json.loads((tmp_path / "settings.json").read_text()) == settings
    config = Config.parse(settings["DNN"])
    assert config.model.name == "dnn" and config.training.learning_rate != 1e-3
    assert (tmp_path / "search" / "dnn" / "leaderboard.json").is_file()


def test_what_dcn_v2_learned_is_shown_by_rank_and_block(small_table, dataset, tmp_path):
    page = run_experiment("understanding", tmp_path, quick=True, work=tmp_path / "work")
    run = Run.open(tmp_path / "work/movielens-quick/runs-0/dcn-v2/seed-0")
    ranks, crosses, moving = page.tables.values()
    strengths = [float(row[2]) for row in moving[1:]]
    assert strengths == sorted(strengths, reverse=True)
    learned = run.spectrum[0].values
    assert ranks[2][:2] == ["layer 1, learned", str(sum(value >= 0.5 * learned[0] for value in learned))]
    norms = [float(row[1]) for row in crosses[1:]]
    assert norms == sorted(norms, reverse=True)
    assert len(page.values["blocks"]) == len(dataset.schema.names) ** 2
    assert "σ_k" in (tmp_path / "understanding.svg").read_text()


def test_a_paired_difference_has_students_interval():
    ours, theirs = [0.30, 0.34, 0.32], [0.31, 0.36, 0.32]
    pairs = [-0.01, -0.02, 0.0]
    found = movielens.difference(ours, theirs)
    assert found.mean == pytest.approx(-0.01)
    assert found.margin == pytest.approx(4.303 * statistics.stdev(pairs) / math.sqrt(3))
    assert found.is_noise and not str(found).endswith("*")
    assert str(movielens.difference([0.30, 0.31], [0.40, 0.41])).endswith("*")
    assert movielens.difference([0.30], [0.40]).is_noise


def test_the_committed_settings_are_of_the_papers_protocol():
    settings = movielens.committed()
    assert list(settings) == list(movielens.PAPER)
    for values in settings.values():
        config = Config.parse(values)
        assert config.model.embedding.dim == 30
        training = config.training
        assert (training.batch_size, training.clip_norm, training.average_decay) == (128, 10.0, 0.9999)


def test_without_its_data_an_experiment_says_what_it_needs(tmp_path):
    with pytest.raises(ConfigError, match=r"needs MovieLens-1M.*--data"):
        run_experiment("movielens", tmp_path, work=tmp_path / "work")


def test_an_option_that_an_experiment_does_not_take_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'theorems' takes 'quick'; got 'data'"):
        run_experiment("theorems", tmp_path, data=tmp_path)


def test_all_runs_what_has_its_data(tmp_path, monkeypatch):
    said, ran = [], []
    monkeypatch.setattr(
        "crossrank.experiments.paper.run_experiment", lambda name, into, **options: ran.append((name, options))
    )
    run_all(tmp_path, quick=True, data={"criteo": Path("train.txt")}, say=said.append)
    assert ("depth", {"quick": True, "data": Path("train.txt")}) in ran
    assert ("polynomials", {"quick": True}) in ran
    assert not {name for name, _ in ran} & {"movielens", "understanding"}
    assert sum("left out" in line for line in said) == 2
    run_all(tmp_path, data={"movielens-1m": Path("ml-1m.zip")}, work=tmp_path, say=said.append)
    assert ("movielens", {"quick": False, "data": Path("ml-1m.zip"), "work": tmp_path}) in ran
    assert ("depth", {"quick": False, "work": tmp_path}) in ran


@pytest.mark.slow
def test_movielens_runs_on_the_real_ratings(real_data, tmp_path, monkeypatch):
    monkeypatch.setattr(movielens, "PAPER", {label: movielens.PAPER[label] for label in ("DCN-V2", "DCN-Mix")})
    few_successors(monkeypatch)
    page = movielens.run(quick=True, data=real_data / "ml-1m.zip", work=tmp_path)
    assert set(page.values["models"]) == {"DCN-V2", "DCN-Mix"}
    first, second = page.values["models"]["DCN-V2"]["logloss_over_splits"]["values"]
    assert first != second
