"""Figures 2 (left) and 5: what DCN-V2 has learned on MovieLens-1M, in its spectrum and its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crossrank.evaluation import explain
from crossrank.evaluation.spectrum import numerical_rank
from crossrank.experiments.figures import Figure
from crossrank.experiments.paper.movielens import WORK, committed, split_dataset, table_settings
from crossrank.experiments.paper.page import Page, Table
from crossrank.results import Cross, Spectrum
from crossrank.runs import Run
from crossrank.runs.lifecycle import is_run, plan_in
from crossrank.training import Config, train
from crossrank.training.plan import changes

MODEL, TOLERANCES, TOP = "DCN-V2", (0.5, 0.2, 0.1, 0.05, 0.01), 8
TEXT = [
    "The first run of DCN-V2 in the table of MovieLens-1M. Singular values of each cross layer's matrix W, divided "
    "by the largest, as they were drawn and as they were learned; R_T is how many are at least T times the largest.",
    "Blocks of the first cross layer's W: row i, column j is the Frobenius norm of the block that crosses feature i "
    "with feature j. The paper finds Gender × UserId and MovieId × UserId among the strongest. A norm does not see how "
    "large the embedded vectors are; the strength does: how far the cross moves the logit (`crossrank explain`).",
]


def run(*, quick: bool = False, data: Path | None = None, work: Path = WORK) -> Page:
    """Read the first run of the main table's DCN-V2, training it if it is not there."""
    work = work / ("movielens-quick" if quick else "movielens")
    dataset = split_dataset(data, work, 0, quick=quick)
    setting = next(setting for setting in table_settings(committed(), quick=quick) if setting.label == MODEL)
    config, place = Config.parse(setting.config), work / "runs-0" / "dcn-v2" / "seed-0"
    if not is_run(place) or changes(plan_in(place), config, dataset, seed=0):
        train(dataset, into=place, config=config, seed=0, overwrite=True, progress=False)
    opened = Run.open(place)
    blocks = [block for selves in (False, True) for block in explain(opened, layer=1, directed=True, selves=selves)]
    return _page(opened.spectrum, blocks, explain(opened, layer=1), dataset.schema.names)


def _page(layers: Sequence[Spectrum], blocks: Sequence[Cross], pairs: Sequence[Cross], names: Sequence[str]) -> Page:
    ranks = [["matrix", *(f"R at T = {tolerance}" for tolerance in TOLERANCES)]]
    for layer in layers:
        for kind, name in (("initial", "as drawn"), ("values", "learned")):
            found = (str(numerical_rank(getattr(layer, kind), tolerance)) for tolerance in TOLERANCES)
            ranks.append([f"layer {layer.layer}, {name}", *found])

    def draw(figure: Figure) -> None:
        figure.set_size_inches(11, 4.4)
        left, right = figure.subplots(1, 2)
        for layer in layers:
            for kind, marker, name in (("initial", "+", "as drawn"), ("values", "x", "learned")):
                values = [value / getattr(layer, kind)[0] for value in getattr(layer, kind)]
                left.plot(range(1, len(values) + 1), values, marker, label=f"layer {layer.layer}, {name}")
        left.set_xlabel("k")
        left.set_ylabel("σ_k / σ_1")
        left.legend()
        norms = {block.features: block.norm for block in blocks}
        image = right.imshow([[norms[row, column] for column in names] for row in names], cmap="Blues")
        right.set_xticks(range(len(names)), names, rotation=45)
        right.set_yticks(range(len(names)), names)
        right.set_title("block norms of the first cross layer")
        figure.colorbar(image, ax=right)

    return Page(
        title="What DCN-V2 learns on MovieLens-1M (Figures 2 and 5)",
        text=TEXT,
        tables={
            "Numerical rank:": ranks,
            "Strongest crosses of the first layer by norm:": _strongest(pairs, "norm"),
            "Strongest crosses of the first layer by how far they move the logit:": _strongest(pairs, "strength"),
        },
        notes=_notes(layers, pairs),
        values={"spectrum": [one.to_dict() for one in layers], "blocks": [one.to_dict() for one in blocks]},
        draw=draw,
    )


def _notes(layers: Sequence[Spectrum], pairs: Sequence[Cross]) -> list[str]:
    """What is seen, beside what the paper saw."""
    half, first = TOLERANCES[0], layers[0]
    drawn, learned = (numerical_rank(values, half) for values in (first.initial, first.values))
    names = [pair.name for pair in sorted(pairs, key=lambda pair: -pair.strength)]
    notes = [
        f"As in the paper, the learned matrix decays faster than the drawn one: in the first layer, {learned} singular "
        f"values are at least {half} times the largest, of {drawn} before.",
        f"What moves the logit most is {names[0]}, then {names[1]}.",
    ]
    if "user × gender" in names:
        notes += [
            f"The paper's MovieId × UserId is number {names.index('user × movie') + 1} of {len(names)}. A ZIP code all "
            "but names a user (3,439 codes, 6,040 users), so crosses with it are largely crosses with the user.",
            f"The paper's other pair, Gender × UserId, is number {names.index('user × gender') + 1}. A user "
            "has one gender, so their cross can say nothing that the user's own vector does not say. The norm of "
            "a block, which is what the paper shows, does not see that, nor how long the embedded vectors are: among "
            "the norms here, too, few pairs stand out.",
        ]
    return notes


def _strongest(pairs: Sequence[Cross], measure: str) -> Table:
    table = [["cross", "norm", "strength"]]
    for pair in sorted(pairs, key=lambda pair: -getattr(pair, measure))[:TOP]:
        table.append([pair.name, f"{pair.norm:.3f}", f"{pair.strength:.3f}"])
    return table
