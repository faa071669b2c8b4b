"""The MovieLens-1M columns of Table 6: ten models, five seeds on one split, and paired over random splits.

The split moves these numbers more than the models differ, so two models are compared on the same splits. The settings
in movielens.json, and those of the networks after DCN-V2 in successors.json, were chosen on the validation rows of the
first split; test rows are read once for each reported run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from crossrank.data import EncodedDataset
from crossrank.data.dataset import is_dataset
from crossrank.data.prepare import prepare
from crossrank.data.table import open_table
from crossrank.errors import ConfigError
from crossrank.experiments.figures import Figure, dots, spread
from crossrank.experiments.paper.page import Page
from crossrank.experiments.paper.studies import (
    METRICS,
    Setting,
    difference,
    first_runs,
    measure_tasks,
    spread_text,
    tasks,
    trained_on,
)
from crossrank.experiments.paper.successors import MOVIELENS, Choices, ahead, choose, comparison
from crossrank.files import write_json

SEEDS, SPLITS, TRIALS = 5, 5, 48
QUICK_ROWS, QUICK_TRAINING = 20_000, {"max_steps": 20, "average_decay": 0.9}
WORK = Path("runs/paper")
REFERENCE = "DCN-V2"  # what the others are compared with
BAR = {"logloss": 0.3160, "auc": 0.8964}  # the paper's best


SEARCHED = (
    "How the settings were found: 105 trainings on the fixed split, judged by its validation rows. First 61, about six "
    "a model: learning rate 0.0005 or 0.001, embedding dropout 0.3 or 0.4, deep layers 192, 192-192 or 400 with "
    "dropout 0.5, and what is the model's own (structure, cross layers, rank, experts, gate, product, attention, CIN). "
    "Then 44 around the best of each: learning rate 0.002, dropout 0.2 to 0.4, combinations, and a second seed of the "
    "best. Between settings that differed by less than two seeds do, the cheaper one was taken."
)


class Printed(NamedTuple):
    """A row of the paper's table."""

    logloss: float
    auc: float
    parameters: str
    flops: str


PAPER = {
    "PNN": Printed(0.3182, 0.8955, "54K", "110K"),
    "DeepFM": Printed(0.3202, 0.8932, "46K", "93K"),
    "DLRM": Printed(0.3245, 0.8890, "7.7K", "16K"),
    "xDeepFM": Printed(0.3251, 0.8923, "160K", "990K"),
    "AutoInt+": Printed(0.3204, 0.8928, "260K", "500K"),
    "DCN": Printed(0.3197, 0.8935, "110K", "220K"),
    "DNN": Printed(0.3201, 0.8929, "46K", "92K"),
    "DCN-V2": Printed(0.3170, 0.8950, "110K", "220K"),
    "DCN-Mix": Printed(0.3160, 0.8964, "110K", "210K"),
    "CrossNet": Printed(0.3185, 0.8937, "65K", "130K"),
}


def run(
    *, quick: bool = False, data: Path | None = None, search: bool = False, work: Path = WORK, jobs: int | None = None
) -> Page:
    """Train all models on the fixed split and on random ones.

    Args:
        quick: few rows, few steps, one seed, two splits.
        data: ml-1m.zip or its folder.
        search: search for the settings again, on the validation rows of the first split; they go to
            ``settings.json`` in the working folder.
        work: where datasets and runs are kept, so that a second call trains nothing twice.
        jobs: settings that are trained at a time; left out, one for each core.
    """
    work = work / ("movielens-quick" if quick else "movielens")
    seeds, splits = (1, 2) if quick else (SEEDS, SPLITS)
    fixed, *others = (split_dataset(data, work, split, quick=quick) for split in range(splits + 1))
    settings = table_settings(searched(fixed, work, quick=quick) if search else committed(), quick=quick)
    wanted = tasks(fixed, settings, work / "runs-0", seeds=seeds)
    for split, dataset in enumerate(others, start=1):
        wanted += tasks(dataset, settings, work / f"runs-{split}", seeds=1)
    measured = iter(measure_tasks(wanted, jobs))
    found, *by_split = ({setting.label: next(measured) for setting in settings} for _ in range(splits + 1))
    for label, values in found.items():
        for metric in METRICS:
            values[f"{metric}_over_splits"] = spread([each[label][metric]["mean"] for each in by_split])
    later, choices = _successors(data, work, quick=quick, search=search, jobs=jobs)
    page = _page(found, later, choices, searched_anew=search)
    return dataclasses.replace(page, runs=first_runs(wanted[: len(settings)]))


def _successors(
    data: Path | None, work: Path, *, quick: bool, search: bool, jobs: int | None
) -> tuple[dict[str, dict[str, Any]], Choices]:
    """What the networks after DCN-V2 reach over random splits, and with which settings.

    Those that a search finds go to ``successors.json`` in the working folder.
    """
    recipe = MOVIELENS.quick() if quick else MOVIELENS
    choices: Choices = {} if search or quick else committed("successors.json")
    if not choices:
        tried = recipe.search_tasks(split_dataset(data, work, 0, quick=quick), work / "successors-search")
        choices = choose(tried, measure_tasks(tried, jobs))
        write_json(work / "successors.json", choices)
    wanted = []
    for split in range(1, (2 if quick else SPLITS) + 1):
        dataset = split_dataset(data, work, split, quick=quick)
        wanted += recipe.test_tasks(dataset, work / f"successors-{split}", choices, seeds=1)
    measured = measure_tasks(wanted, jobs)
    found = {label: dict(values) for label, values in zip(choices, measured, strict=False)}
    for place, values in enumerate(found.values()):
        for metric in METRICS:
            values[metric] = spread([each[metric]["mean"] for each in measured[place :: len(choices)]])
    return found, choices


def committed(name: str = "movielens.json") -> dict[str, dict[str, Any]]:
    """The settings of each model, by the label of its row."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    settings: dict[str, dict[str, Any]] = json.loads(text)
    return settings


def searched(dataset: EncodedDataset, work: Path, *, quick: bool) -> dict[str, dict[str, Any]]:
    """The settings that a search finds."""
    from crossrank.experiments.space import default_space
    from crossrank.experiments.tune import tune

    settings = {}
    for label, config in committed().items():
        name = config["model"]["name"]
        space = default_space(name, like="movielens")
        if quick:
            space = dataclasses.replace(space, fixed={**space.fixed, "training": QUICK_TRAINING})
        sizes: dict[str, Any] = {"trials": TRIALS}
        if quick:
            sizes = {"trials": 2, "stages": 1, "seeds": 1, "finalists": 1, "jobs": 1}
        settings[label] = tune(dataset, work / "search" / name, space=space, **sizes).winner
    write_json(work / "settings.json", settings)
    return settings


def split_dataset(data: Path | None, work: Path, split: int, *, quick: bool) -> EncodedDataset:
    """The rows under the split of this number; 0 is the fixed one."""
    folder = work / f"split-{split}"
    if not is_dataset(folder):
        from crossrank.data.sources import movielens  # which needs polars

        if data is None:
            raise ConfigError(
                "This experiment needs MovieLens-1M; got no path.", hint="Pass --data movielens-1m=ml-1m.zip."
            )
        table = movielens.open_set(data)
        if quick:
            table = open_table(table.head(QUICK_ROWS))
        divided = dataclasses.replace(movielens.SPLIT, seed=split)
        prepare(table, movielens.schema(), folder, split=divided, progress=False, overwrite=True)
    return EncodedDataset.open(folder)


def table_settings(configs: Mapping[str, Mapping[str, Any]], *, quick: bool) -> list[Setting]:
    """The rows of the table."""
    settings = []
    for label, printed in PAPER.items():
        config = dict(configs[label])
        if quick:
            config["training"] = {**config["training"], **QUICK_TRAINING}
        paper = {"logloss": printed.logloss, "auc": printed.auc}
        settings.append(Setting(label=label, config=config, paper=paper))
    return settings


def _page(
    found: dict[str, dict[str, Any]], later: dict[str, dict[str, Any]], choices: Choices, *, searched_anew: bool
) -> Page:
    quality = [["model", "log loss", "paper", "AUC", "paper", "parameters", "paper", "FLOPs", "paper"]]
    splits = [["model", "log loss", f"against {REFERENCE}", "AUC", f"against {REFERENCE}"]]
    reference = found[REFERENCE]
    for label, values in found.items():
        printed, row = PAPER[label], [label]
        for metric in METRICS:
            over = f"{metric}_over_splits"
            against = difference(values[over]["values"], reference[over]["values"])
            values[f"{metric}_against_{REFERENCE}"] = dataclasses.asdict(against)
            row += [spread_text(values[over]), "" if label == REFERENCE else str(against)]
        splits.append(row)
        counted = (f"{values['parameters']:,}", printed.parameters, f"{values['flops']:,}", printed.flops)
        losses = (spread_text(values["logloss"]), f"{printed.logloss:.4f}")
        quality.append([label, *losses, spread_text(values["auc"]), f"{printed.auc:.4f}", *counted])

    def draw(figure: Figure) -> None:
        figure.set_size_inches(9, 4.2)
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, metric, name in ((left, "logloss", "log loss"), (right, "auc", "AUC")):
            ours = {label: values[f"{metric}_over_splits"] for label, values in found.items()}
            paper = {label: getattr(printed, metric) for label, printed in PAPER.items()}
            dots(axes, ours, paper, label=f"{name}, test rows, over splits (×: paper)", log=False)

    return Page(
        title="Ten models on MovieLens-1M (Table 6)",
        text=[
            "739,012 ratings, six features, embeddings of width 30, Adam, batches of 128, gradients clipped at 10, "
            "weights averaged with 0.9999. All choices were made on validation rows. Parameters are without "
            "embeddings.",
            "The random division into train, validation and test rows moves all models together, by more than they "
            "differ. So the second table gives mean ± standard deviation over random divisions, and the mean "
            f"difference to {REFERENCE} on the same divisions with its 95% interval; a star marks what is larger "
            "than noise.",
        ],
        tables={
            "The fixed split, mean ± standard deviation over seeds:": quality,
            "Random splits, mean ± standard deviation:": splits,
            f"Networks after DCN-V2 beside three of the ten, the same random splits; {MOVIELENS}:": comparison(
                later, choices
            ),
        },
        notes=[
            _verdict(found),
            *_ahead(found),
            f"In the last table {ahead(later)}",
            *([] if searched_anew else [SEARCHED]),
            trained_on({**found, **{f"{label}, last table": values for label, values in later.items()}}),
        ],
        values={"models": found, "successors": later, "choices": choices},
        draw=draw,
    )


def _verdict(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether the better of DCN-V2 and DCN-Mix reaches the paper's best, in the mean over splits."""
    best = min(("DCN-V2", "DCN-Mix"), key=lambda label: found[label]["logloss_over_splits"]["mean"])
    logloss, auc = (found[best][f"{metric}_over_splits"]["mean"] for metric in METRICS)
    met = logloss <= BAR["logloss"] and auc >= BAR["auc"]
    return (
        f"The paper's best is {BAR['logloss']:.4f} / {BAR['auc']:.4f}. {best} reaches {logloss:.4f} / {auc:.4f} "
        f"in the mean over splits: {'met' if met else 'not met'}."
    )


def _ahead(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line on the models that beat the reference by more than noise."""
    better = {}
    for label, values in found.items():
        against = values[f"logloss_against_{REFERENCE}"]
        if against["mean"] < -against["margin"]:
            better[label] = f"{label} by {-against['mean']:.4f}"
    return [f"Better than {REFERENCE} in log loss by more than noise: {', '.join(better.values())}."] if better else []
