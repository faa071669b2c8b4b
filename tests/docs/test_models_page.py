"""The table of docs/models.md has every model, and what it says of each is so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crossrank.errors import ConfigError
from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.models.build import BUILT_IN
from crossrank.models.cost import model_cost
from crossrank.nn import Features
from crossrank.schema import Feature
from crossrank.serving.splitting import can_split
from crossrank.training import TrainingSettings
from crossrank.training.cuda.dcn import is_written_out

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FEATURES = [
    *(Feature(f"c{i}", "categorical", 1000) for i in range(8)),
    *(Feature(f"n{i}", "numeric") for i in range(4)),
]
LINES = {
    cells[0]: cells[2:]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `") and len(cells := [cell.strip(" `") for cell in line.strip("|").split("|")]) == 10
}


def facts(name: str) -> list[str]:
    """Parameters, multiply-adds, crosses told, taken apart, fused on a GPU, paths, classes, any widths."""
    settings = parse_model_settings({"name": name})
    cost, model = model_cost(settings, FEATURES), build_model(settings, FEATURES).eval()
    layers, terms = [layer for _, _, layer in model.cross_layers()], model.terms()
    fused = is_written_out(model, TrainingSettings(tables="lazy"))
    row = Features(torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 4))
    try:
        build_model(parse_model_settings({"name": name, "embedding": {"dims": {"c0": 5}}}), FEATURES)
        any_widths = True
    except ConfigError:
        any_widths = False
    said = [
        bool(layers) and all(layer.tells_matrix for layer in layers),
        terms is not None and can_split(terms),
        fused,
        model.heads(row).shape[1] > 1,
        MODELS[name].model.takes_classes,
        any_widths,
    ]
    counts = (cost.network_parameters, sum(cost.multiply_adds.values()))
    return [*(f"{count:,}" for count in counts), *("✓" if one else "" for one in said)]


def test_the_table_has_every_model_in_the_order_of_the_list() -> None:
    assert list(LINES) == [name for name in MODELS if name in BUILT_IN]  # other tests may register their own


@pytest.mark.parametrize("name", MODELS)
def test_the_table_says_what_is_so(name) -> None:
    assert LINES[name] == facts(name)
