"""Which settings each study on Criteo compares, and what the paper prints for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from crossrank.data.generators.criteo_like import BEST_BY_ORDER
from crossrank.experiments.paper.criteo import (
    NUM_CATEGORICAL,
    NUM_NUMERIC,
    Found,
    Scale,
    Study,
    run_study,
)
from crossrank.experiments.paper.studies import Setting
from crossrank.experiments.paper.table6 import CRITEO


def _interaction_alone(scale: Scale) -> list[Setting]:
    cross = {"num_layers": 5, "num_experts": 4, "rank": scale.sized(64), "gate": "sigmoid"}
    attention = {"num_layers": 2, "num_heads": 3, "head_dim": 40}
    models: dict[str, tuple[float, dict[str, Any]]] = {
        "PNN": (0.4715, {"name": "pnn", "product": "outer", "deep": {"sizes": []}}),
        "FM": (0.4736, {"name": "fm"}),
        "CIN": (0.4719, {"name": "cin", "cin": {"sizes": [scale.sized(100)] * 3}}),
        "AutoInt": (0.4711, {"name": "autoint", "attention": attention}),
        "DNN": (0.4704, {"name": "dnn", "deep": {"sizes": [scale.sized(1024)] * 2}}),
        "CrossNet": (0.4702, {"name": "cross-net", "cross": {"num_layers": 2}}),
        "CrossNet-Mix": (0.4694, {"name": "cross-net-mix", "cross": cross}),
    }
    return [
        Setting(label=label, config=scale.config(**model), paper={"logloss": loss})
        for label, (loss, model) in models.items()
    ]


QUALITY = {  # log loss and AUC of Table 6 on Criteo
    "PNN": (0.4421, 0.8099),
    "DeepFM": (0.4420, 0.8099),
    "DLRM": (0.4427, 0.8092),
    "xDeepFM": (0.4421, 0.8099),
    "AutoInt+": (0.4420, 0.8101),
    "DCN": (0.4420, 0.8099),
    "DNN": (0.4421, 0.8098),
    "DCN-V2": (0.4406, 0.8115),
    "DCN-Mix": (0.4408, 0.8112),
    "CrossNet": (0.4413, 0.8107),
}


def _main_table(scale: Scale) -> list[Setting]:
    settings = []
    for row in CRITEO.rows:
        logloss, auc = QUALITY[row.label]
        config = scale.config(**_shrunk(row.settings, scale))
        settings.append(Setting(label=row.label, config=config, paper={"logloss": logloss, "auc": auc}))
    return settings


def _shrunk(values: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
    """A model's settings with its widths in proportion."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result[key] = _shrunk(value, scale)
        elif key in ("sizes", "bottom_sizes"):
            result[key] = [scale.sized(size) for size in value]
        else:
            result[key] = scale.sized(value) if key == "rank" else value
    return result


MEMORY = (  # parameters, layers and rank of the cross network that has them, log loss and AUC of CrossNet and DNN
    ("7.9E+05", 3, 128, (0.4424, 0.8096), (0.4427, 0.8091)),
    ("1.3E+06", 5, 128, (0.4417, 0.8104), (0.4426, 0.8094)),
    ("2.1E+06", 4, 256, (0.4416, 0.8105), (0.4423, 0.8096)),
    ("2.6E+06", 5, 256, (0.4415, 0.8106), (0.4423, 0.8096)),
)


def _memory(scale: Scale) -> list[Setting]:
    settings = []
    width = scale.input_dim
    for place, (budget, num_layers, rank, cross_paper, deep_paper) in enumerate(MEMORY, start=1):
        cross = {"num_layers": num_layers, "layer": "low_rank", "rank": scale.sized(rank)}
        parameters = num_layers * width * (2 * scale.sized(rank) + 1)
        size = round((math.sqrt(width**2 + 4 * parameters) - width) / 2)  # width · size + size² of two layers
        for line, paper, model in (
            ("CrossNet", cross_paper, {"name": "cross-net", "cross": cross}),
            ("DNN", deep_paper, {"name": "dnn", "deep": {"sizes": [size, size]}}),
        ):
            logloss, auc = paper
            settings.append(
                Setting(
                    label=f"{line}, paper's budget {budget}",
                    config=scale.config(**model),
                    line=line,
                    place=place,
                    paper={"logloss": logloss, "auc": auc},
                )
            )
    return settings


DEPTHS = (1, 2, 3, 4, 5)


def _layers(count: int, kind: str = "") -> str:
    return f"{count} {kind}layer{'s' * (count > 1)}"


def _depth(scale: Scale) -> list[Setting]:
    settings = []
    for depth in DEPTHS:
        cross = scale.config(name="cross-net", cross={"num_layers": depth})
        deep = scale.config(name="dnn", deep={"sizes": [scale.input_dim] * depth})
        for line, config in (("CrossNet", cross), ("DNN", deep)):
            settings.append(Setting(label=f"{line}, {_layers(depth)}", config=config, line=line, place=depth))
    return settings


def _rank(scale: Scale) -> list[Setting]:
    deep = {"sizes": [scale.sized(512)] * 3}
    ranks = sorted({4, 8, 16, 32, 64, scale.input_dim // 4, scale.input_dim // 2})
    settings = [
        Setting(
            label=f"rank {rank}",
            config=scale.config(name="dcn-v2", cross={"num_layers": 3, "layer": "low_rank", "rank": rank}, deep=deep),
            line="DCN-V2, low rank",
            place=rank,
        )
        for rank in ranks
        if rank < scale.input_dim
    ]
    full = scale.config(name="dcn-v2", cross={"num_layers": 3}, deep=deep)
    return [*settings, Setting(label="full", config=full, line="DCN-V2, full", place=scale.input_dim)]


def _experts(scale: Scale) -> list[Setting]:
    total = 32 * max(1, round(scale.sized(256) / 32))
    settings = []
    for experts, logloss in ((1, 0.4418), (4, 0.4416), (8, 0.4416), (16, 0.4422), (32, 0.4420)):
        cross = {"num_layers": 2, "num_experts": experts, "rank": total // experts}
        settings.append(
            Setting(
                label=f"{experts} expert{'s' * (experts > 1)} of rank {total // experts}",
                config=scale.config(name="cross-net-mix", cross=cross),
                line="CrossNet-Mix",
                place=experts,
                paper={"logloss": logloss},
            )
        )
    return settings


def _relu(scale: Scale) -> list[Setting]:
    deep, width = [scale.sized(768)] * 2, scale.input_dim
    settings = []
    for depth in (1, 2):
        relu = scale.config(name="dnn", deep={"sizes": [width] * depth + deep})
        cross = scale.config(name="dcn-v2", cross={"num_layers": depth}, deep={"sizes": deep})
        settings.append(Setting(label=_layers(depth, "ReLU "), config=relu))
        settings.append(Setting(label=_layers(depth, "cross "), config=cross))
    return settings


def _quarter(found: Found) -> str:
    """A quarter of the input width against the full matrix."""
    width = found["full"]["config"]["model"]["embedding"]["dim"] * NUM_CATEGORICAL + NUM_NUMERIC
    low, full = (found[label]["logloss"]["mean"] for label in (f"rank {width // 4}", "full"))
    return f"A rank of {width // 4}, a quarter of the input width {width}, against the full matrix: {low - full:+.4f}."


def _relative(found: Found) -> str:
    """1 - AUC relative to one ReLU layer, as the paper prints it."""
    base = 1 - found["1 ReLU layer"]["auc"]["mean"]
    parts = (f"{label} {(1 - values['auc']['mean']) / base - 1:+.1%}" for label, values in found.items())
    return f"1 - AUC relative to one ReLU layer: {', '.join(parts)}."


STUDIES = {
    "interaction-alone": Study(
        title="Feature interactions alone, without a deep network (Table 5)",
        text="Categories only, so what the truth draws from numbers is out of reach. The paper finds higher orders "
        "better than the second (PNN, FM), and cross networks best.",
        settings=_interaction_alone,
        numeric=False,
    ),
    "criteo": Study(
        title="All models with their deep networks on Criteo (Table 6)",
        text="Every model at the setting that the paper found best, its widths in proportion to the input. The paper "
        "finds DCN-V2 best, then DCN-Mix and CrossNet, and no other model clearly better than the DNN.",
        settings=_main_table,
    ),
    "memory": Study(
        title="Cross layers against ReLU layers at a fixed number of parameters (Table 7)",
        text="A cross network of low rank against a deep network of two layers with as many parameters. The paper "
        "finds the cross network better at every budget.",
        settings=_memory,
        axis="budget",
    ),
    "depth": Study(
        title="Depth of the cross network (Figure 4, left)",
        text="Full-rank cross layers alone against as many ReLU layers of the same size. The paper finds the cross "
        "network to get better with each layer, by less and less, and to pass the DNN from three layers on.",
        settings=_depth,
        axis="layers",
        bound={depth: BEST_BY_ORDER[min(depth + 1, 4)] for depth in DEPTHS},
    ),
    "rank": Study(
        title="Rank of the cross layers (Figure 4, right)",
        text="Three low-rank cross layers under three hidden layers. The paper finds gains up to a rank of about the "
        "number of features (39), little after, and a quarter of the input width to preserve the accuracy.",
        settings=_rank,
        axis="rank",
        finding=_quarter,
    ),
    "experts": Study(
        title="Number of experts at a fixed total rank (section 7.5)",
        text="Two layers of a mixture. The paper finds little difference. A gate depends on the row, so several "
        "experts can also form orders that two layers with one expert cannot.",
        settings=_experts,
        axis="experts",
    ),
    "relu": Study(
        title="Cross layers against same-sized ReLU layers (Table 8)",
        text="One or two layers as wide as the input, of either kind, under the same hidden layers. The paper's "
        "relative loss of AUC, on its own data: ReLU 0% and -0.15%, cross -0.19% and -0.45%.",
        settings=_relu,
        finding=_relative,
    ),
}

interaction_alone, main_table, memory, depth, rank, experts, relu = (
    partial(run_study, STUDIES[name])
    for name in ("interaction-alone", "criteo", "memory", "depth", "rank", "experts", "relu")
)
