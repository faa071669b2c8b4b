"""Runs without training, for tests of what is done with their scores."""

from __future__ import annotations

import torch

from crossrank.data import Encoder
from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.runs import Run

ITEM = ["item", "category", "tags", "price", "age_days"]
SMALL = {"embedding": {"dim": 4}}


class Untrained(Run):
    """A run without a folder: random weights, in float64 unless told otherwise."""

    def __init__(self, encoder: Encoder, *, double: bool = True, **settings) -> None:
        self.encoder = encoder
        torch.manual_seed(1)
        values = {**SMALL, **settings}
        if MODELS[values.get("name", "dcn-v2")].settings.__dataclass_fields__.get("deep"):
            values.setdefault("deep", {"sizes": [8, 6]})
        self.model = build_model(parse_model_settings(values), encoder.features).eval()
        with torch.no_grad():
            for table in self.model.tables():
                table.weight.normal_(std=0.4)
        self.model = self.model.double() if double else self.model

    schema = property(lambda self: self.encoder.schema)
