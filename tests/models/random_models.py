"""Models with random weights and rows with random content, for comparing both with a reference."""

from __future__ import annotations

import torch

from crossrank.models import build_model, parse_model_settings
from crossrank.nn import Bag, Features
from crossrank.schema import Feature


def make_features(num_categorical, num_multivalent, num_numeric):
    return [
        *(Feature(f"c{i}", "categorical", 4 + i) for i in range(num_categorical)),
        *(Feature(f"m{i}", "multivalent", 3 + i) for i in range(num_multivalent)),
        *(Feature(f"n{i}", "numeric") for i in range(num_numeric)),
    ]


def random_model(config, features, *, width):
    """In float64, every parameter random: zero biases and first-order weights would hide mistakes."""
    model = build_model(parse_model_settings({**config, "embedding": {"dim": width}}), features).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def random_rows(features, num_rows):
    of_kind = {kind: [f for f in features if f.kind == kind] for kind in ("categorical", "multivalent", "numeric")}
    ids = torch.stack([torch.randint(f.vocab_size, (num_rows,)) for f in of_kind["categorical"]], dim=1)
    bags = []
    for feature in of_kind["multivalent"]:
        counts = torch.randint(3, (num_rows,))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        bags.append(Bag(torch.randint(feature.vocab_size, (int(counts.sum()),)), offsets))
    return Features(ids, torch.randn(num_rows, len(of_kind["numeric"]), dtype=torch.float64), tuple(bags))
