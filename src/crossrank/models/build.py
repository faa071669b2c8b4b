"""From settings to a model: the one place that knows all of them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from crossrank.config import flatten, parse, to_dict
from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.models.afn import AFN, AFNPlus, AFNPlusSettings, AFNSettings
from crossrank.models.autoint import AutoInt, AutoIntPlus, AutoIntPlusSettings, AutoIntSettings
from crossrank.models.base import Model
from crossrank.models.cin import CIN, CINSettings
from crossrank.models.dcn import DCN, DCNSettings
from crossrank.models.dcn_v2 import (
    DCNV2,
    CrossNetMixSettings,
    CrossNetSettings,
    DCNMixSettings,
    DCNV2Settings,
    GDCNSettings,
)
from crossrank.models.deep_crossing import DeepCrossing, DeepCrossingSettings
from crossrank.models.deepfm import DeepFM, DeepFMSettings
from crossrank.models.dlrm import DLRM, DLRMSettings
from crossrank.models.dnn import DNN, DNNSettings
from crossrank.models.edcn import EDCN, EDCNSettings
from crossrank.models.ensemble import Ensemble
from crossrank.models.fcn import ECN, FCN, LCN, ECNSettings, FCNSettings, LCNSettings
from crossrank.models.final_mlp import FinalMLP, FinalMLPSettings
from crossrank.models.final_net import FinalNet, FinalNetSettings
from crossrank.models.fm import FM, FMSettings
from crossrank.models.interhat import InterHAt, InterHAtSettings
from crossrank.models.logistic_regression import LogisticRegression, LogisticRegressionSettings
from crossrank.models.mask_net import MaskNet, MaskNetSettings
from crossrank.models.nfm import NFM, NFMSettings
from crossrank.models.pnn import PNN, PNNSettings
from crossrank.models.qnn_alpha import QNNAlpha, QNNAlphaSettings
from crossrank.models.settings import ModelSettings
from crossrank.models.tasks import PLE, MMoE, MMoESettings, PLESettings, SharedBottom, SharedBottomSettings
from crossrank.models.wide_deep import WideDeep, WideDeepSettings
from crossrank.models.wukong import Wukong, WukongSettings
from crossrank.models.xdeepfm import XDeepFM, XDeepFMSettings
from crossrank.nn import OutputLayer
from crossrank.schema import Feature


class Entry(NamedTuple):
    """A model's class, its settings, and a line about it."""

    model: Any
    settings: type[ModelSettings]
    about: str


MODELS = {
    "dcn-v2": Entry(DCNV2, DCNV2Settings, "full-rank cross layers and a deep network, stacked or parallel"),
    "dcn-mix": Entry(DCNV2, DCNMixSettings, "DCN-V2 with mixtures of low-rank experts"),
    "gdcn": Entry(DCNV2, GDCNSettings, "DCN-V2 whose crosses pass an information gate"),
    "cross-net": Entry(DCNV2, CrossNetSettings, "the cross network of DCN-V2 alone"),
    "cross-net-mix": Entry(DCNV2, CrossNetMixSettings, "the cross network of DCN-Mix alone"),
    "dnn": Entry(DNN, DNNSettings, "a deep network on the embedded features"),
    "logistic-regression": Entry(
        LogisticRegression, LogisticRegressionSettings, "one weight for each value, no crosses"
    ),
    "fm": Entry(FM, FMSettings, "a factorization machine: inner products of all pairs of features"),
    "deepfm": Entry(DeepFM, DeepFMSettings, "a factorization machine beside a deep network"),
    "pnn": Entry(PNN, PNNSettings, "inner or outer products of all pairs of features under a deep network"),
    "dlrm": Entry(
        DLRM, DLRMSettings, "inner products of all pairs of features, the numbers being one, under a deep network"
    ),
    "cin": Entry(CIN, CINSettings, "the compressed interaction network of xDeepFM alone"),
    "xdeepfm": Entry(XDeepFM, XDeepFMSettings, "a compressed interaction network beside a deep network"),
    "wide-deep": Entry(WideDeep, WideDeepSettings, "weights for values and hashed pairs of values, and a deep network"),
    "deep-crossing": Entry(DeepCrossing, DeepCrossingSettings, "residual units on the embedded features"),
    "dcn": Entry(DCN, DCNSettings, "DCN (V1): cross layers with one vector each, and a deep network"),
    "nfm": Entry(NFM, NFMSettings, "the summed products of all pairs of features under a deep network"),
    "autoint": Entry(AutoInt, AutoIntSettings, "self-attention between the features"),
    "autoint-plus": Entry(AutoIntPlus, AutoIntPlusSettings, "AutoInt beside a deep network"),
    "afn": Entry(AFN, AFNSettings, "products of learned powers of the features under dense layers"),
    "afn-plus": Entry(AFNPlus, AFNPlusSettings, "AFN beside a deep network"),
    "interhat": Entry(InterHAt, InterHAtSettings, "a Transformer and attention over each order of crosses"),
    "final-mlp": Entry(
        FinalMLP, FinalMLPSettings, "two deep networks on gated features, and products of their outputs"
    ),
    "final-net": Entry(FinalNet, FinalNetSettings, "two deep networks whose layers multiply what they make of x"),
    "mask-net": Entry(MaskNet, MaskNetSettings, "dense layers on features that each row masks for itself"),
    "fcn": Entry(FCN, FCNSettings, "DCNv3: the mean of ECN and LCN"),
    "ecn": Entry(ECN, ECNSettings, "crosses of x with itself at half the width, masked; the order doubles by layer"),
    "lcn": Entry(LCN, LCNSettings, "crosses of x with x0 at half the width, masked"),
    "qnn-alpha": Entry(QNNAlpha, QNNAlphaSettings, "several normalised crosses of x with itself in each layer"),
    "edcn": Entry(EDCN, EDCNSettings, "a cross and a deep network whose product each next pair of layers reads"),
    "wukong": Entry(Wukong, WukongSettings, "factorization machines on top of each other under a deep network"),
    "shared-bottom": Entry(
        SharedBottom, SharedBottomSettings, "a deep network for several labels, and a tower for each"
    ),
    "mmoe": Entry(MMoE, MMoESettings, "experts for several labels, a gate and a tower for each"),
    "ple": Entry(PLE, PLESettings, "levels of experts, shared and of each label, with gates and towers"),
}


BUILT_IN = frozenset(MODELS)
MOST_PARTS = 1_000_000


def parse_model_settings(values: Mapping[str, Any]) -> ModelSettings:
    """The ``model`` part of a configuration, read by the class that ``name`` selects (``dcn-v2`` if left out)."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"'model' must be a table of settings; got {values!r:.80}.")
    name = values.get("name", "dcn-v2")
    if not isinstance(name, str) or name not in MODELS:
        hint = did_you_mean(str(name), MODELS) or "Import the module that registers it first, if it is one of your own."
        raise ConfigError(f"model.name must be one of {listing(MODELS, most=40)}; got {name!r}.", hint=hint)
    return parse(MODELS[name].settings, values, path="model")


def build_model(settings: ModelSettings, features: Sequence[Feature], *, num_outputs: int = 1) -> Model:
    """The model that the settings describe, for the features that an encoder makes, with so many logits for a row.

    >>> from crossrank.schema import Feature
    >>> model = build_model(parse_model_settings({"name": "dnn"}), [Feature("user", "categorical", 100)])
    >>> model.layout.input_dim
    16
    """
    check_size(settings, features)
    return _build(settings, features, num_outputs)


def _build(settings: ModelSettings, features: Sequence[Feature], num_outputs: int) -> Model:
    make, layout = MODELS[settings.name].model, settings.layout(features)
    more = {"num_outputs": num_outputs} if make.has_towers else {}
    members = [make(layout, settings, **more) for _ in range(settings.ensemble)]
    for member in members:
        if member.num_outputs != num_outputs:
            _widen(member, num_outputs, settings.name)
    return Ensemble(members) if len(members) > 1 else members[0]


def check_size(settings: ModelSettings, features: Sequence[Feature]) -> None:
    """Refuse a model of more parts than anybody means, or of more weights than this machine has memory for."""
    if settings.name not in BUILT_IN:
        return  # somebody's own, which may do anything
    written = flatten(to_dict(settings))
    counts = {key: len(value) if isinstance(value, list) else value for key, value in written.items()}
    parts = {key: count for key, count in counts.items() if "num_" in key or key == "ensemble" or "sizes" in key}
    count = math.prod(filter(None, parts.values()))
    if count > MOST_PARTS:
        most = max(parts, key=lambda key: parts[key])
        raise ConfigError(
            f"A model may have {MOST_PARTS:,} layers, experts and members in all; got more, by model.{most}="
            f"{parts[most]:,} and others."
        )
    layout, there = settings.layout(features), memory()
    sizes = [size for value in written.values() for size in (value if isinstance(value, list) else [value])]
    widest = max(layout.input_dim, *(size for size in sizes if type(size) is int))
    tables = settings.ensemble * sum(slot.vocab_size * slot.width for slot in layout.embedded)
    if 4 * (tables + count * widest**2) <= there:
        return  # far too many, and still no harm
    try:
        one = build_shapes(dataclasses.replace(settings, ensemble=1), features)
        weights = settings.ensemble * sum(weight.numel() for weight in one.parameters())
    except (RuntimeError, TypeError):  # torch cannot even count them
        weights = tables + count * widest**2
    if 4 * weights > there:
        raise ConfigError(
            f"A model's weights must fit into memory, which is {there / 2**30:,.1f} GiB; got {weights:,} weights of "
            f"{4 * weights / 2**30:,.1f} GiB.",
            hint="Lower model.embedding.dim, the sizes of layers, or how many values a column keeps.",
        )


def memory() -> int:
    """What this machine has, in bytes; very much where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**62


def _widen(model: Model, num_outputs: int, name: str) -> None:
    """Give a model a logit for each class or task."""
    if not model.takes_classes:
        known = [name for name, entry in MODELS.items() if entry.model.takes_classes]
        raise ConfigError(
            f"A label with several classes or tasks needs a model that ends in an output layer; got {name}.",
            hint=f"Pick one of {listing(known, most=40)}.",
        )
    output: Any = model.output
    model.output = OutputLayer(output.in_features, num_outputs=num_outputs, bias=output.bias is not None)
    model.num_outputs = num_outputs


def build_shapes(settings: ModelSettings, features: Sequence[Feature]) -> Model:
    """The same on torch's meta device, where a table of millions of rows takes no memory: to look at, not to run."""
    with torch.device("meta"):
        return _build(settings, features, 1).eval()
