"""Models against their published formulas, written out row by row; Wide & Deep has a file of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_models import make_features, random_model, random_rows
from references.afn import afn
from references.attention import autoint, interhat
from references.cin import cin, xdeepfm
from references.dcn import dcn
from references.dcn_v2 import dcn_v2
from references.deep_crossing import deep_crossing
from references.dlrm import dlrm
from references.edcn import edcn
from references.fcn import fcn, qnn_alpha
from references.final_mlp import final_mlp
from references.final_net import final_net
from references.fm import deepfm, fm
from references.gdcn import gdcn
from references.mask_net import mask_net
from references.nfm import nfm
from references.pnn import pnn
from references.tasks import mmoe, ple, shared_bottom
from references.wukong import wukong

DEEP, NO_DEEP = {"deep": {"sizes": [5, 3]}}, {"deep": {"sizes": []}}
HEADS = {"num_heads": 2, "head_dim": 3}
LEVELS = {"num_levels": 2, "num_specific": 2, "num_shared": 1}
STRUCTURES = ("stacked", "parallel", "cross-only")
CASES = [
    *[
        (
            dcn_v2,
            {"name": "dcn-v2", "structure": structure, "cross": {"num_layers": 2, "num_networks": count}, **DEEP},
            {"structure": structure, "num_networks": count},
        )
        for structure in STRUCTURES
        for count in (1, 2)
    ],
    *[
        (gdcn, {"name": "gdcn", "structure": structure, "cross": {"num_layers": 3}, **DEEP}, {"structure": structure})
        for structure in STRUCTURES
    ],
    *[
        (dcn, {"name": "dcn", "structure": structure, "cross": {"num_layers": 3}, **DEEP}, {"structure": structure})
        for structure in STRUCTURES
    ],
    (deep_crossing, {"name": "deep-crossing", **DEEP}, {}),
    (deep_crossing, {"name": "deep-crossing", **NO_DEEP}, {}),
    (nfm, {"name": "nfm", **DEEP}, {}),
    (nfm, {"name": "nfm", **NO_DEEP}, {}),
    *[
        (afn, {"name": name, "num_neurons": 4, "hidden": {"sizes": sizes}, **extra}, {})
        for name, extra in [("afn", {}), ("afn-plus", DEEP)]
        for sizes in ([], [5, 3])
    ],
    *[
        (
            autoint,
            {"name": name, "attention": {**HEADS, "num_layers": layers, "residual": residual}, **extra},
            {"num_heads": 2},
        )
        for name, extra in [("autoint", {}), ("autoint-plus", DEEP)]
        for layers, residual in [(1, True), (2, True), (2, False)]
    ],
    *[
        (
            interhat,
            {"name": "interhat", "attention": {**HEADS, "num_orders": orders, "hidden_dim": 5}, **deep},
            {"num_heads": 2, "num_orders": orders},
        )
        for orders, deep in [(1, DEEP), (3, DEEP), (2, NO_DEEP)]
    ],
    (final_mlp, {"name": "final-mlp", **DEEP, "second": {"sizes": [4]}}, {}),
    (final_mlp, {"name": "final-mlp", **DEEP, "second": {"sizes": [6]}, "num_heads": 3}, {"num_heads": 3}),
    (
        final_mlp,
        {"name": "final-mlp", **DEEP, "second": {"sizes": [4]}, "first_context": ["c0"], "gate_sizes": [4]},
        {"context": True},
    ),
    (final_net, {"name": "final-net", **DEEP}, {}),
    (final_net, {"name": "final-net", "num_blocks": 3, **NO_DEEP}, {"num_blocks": 3}),
    *[
        (
            mask_net,
            {"name": "mask-net", "structure": structure, "mask": {"sizes": [4, 3], "ratio": ratio}, **DEEP},
            {"structure": structure, "num_blocks": 2},
        )
        for structure, ratio in [("serial", 1.0), ("parallel", 1.5)]
    ],
    *[
        (
            edcn,
            {"name": "edcn", "num_layers": layers, "layer": layer, "temperature": temperature},
            {"num_layers": layers, "full": layer == "full", "temperature": temperature},
        )
        for layers, layer, temperature in [(1, "vector", 1.0), (3, "vector", 0.5), (2, "full", 2.0)]
    ],
    *[
        (
            wukong,
            {"name": "wukong", "stack": {"num_layers": layers, "num_fm": 2, "num_linear": 1, **options}, **DEEP},
            {"num_layers": layers},
        )
        for layers, options in [(1, {"rank": 2, "sizes": []}), (2, {"rank": 3, "sizes": [4]})]
    ],
    (
        fcn,
        {"name": "fcn", "exponential": {"num_layers": 2}, "linear": {"num_layers": 3}},
        {"parts": [("exponential", True), ("linear_cross", False)]},
    ),
    (fcn, {"name": "ecn", "cross": {"num_layers": 3}}, {"parts": [("cross", True)]}),
    (fcn, {"name": "lcn", "cross": {"num_layers": 3}}, {"parts": [("cross", False)]}),
    (qnn_alpha, {"name": "qnn-alpha", "cross": {"num_layers": 3, "num_heads": 2}}, {"num_heads": 2}),
    (shared_bottom, {"name": "shared-bottom", "tower_sizes": [4], **DEEP}, {}),
    (mmoe, {"name": "mmoe", "num_experts": 3, "tower_sizes": [4], **DEEP}, {"num_experts": 3}),
    (ple, {"name": "ple", **LEVELS, "tower_sizes": [], **DEEP}, LEVELS),
    (fm, {"name": "fm"}, {}),
    (deepfm, {"name": "deepfm", **DEEP}, {}),
    *[
        (pnn, {"name": "pnn", **options, **DEEP}, {"kernel": "matrix", **options})
        for options in [
            {"product": "inner"},
            {"product": "outer", "kernel": "matrix"},
            {"product": "outer", "kernel": "vector"},
            {"product": "outer", "kernel": "number"},
            {"product": "both", "kernel": "vector"},
        ]
    ],
    (pnn, {"name": "pnn", **NO_DEEP}, {"product": "outer", "kernel": "matrix"}),
    (dlrm, {"name": "dlrm", "bottom_sizes": [4, 3], **DEEP}, {"with_itself": False}),
    (dlrm, {"name": "dlrm", "bottom_sizes": [], "with_itself": True, **DEEP}, {"with_itself": True}),
    *[
        (reference, {"name": name, "cin": {"sizes": sizes, **options}, **extra}, options)
        for reference, name, extra in [(cin, "cin", {}), (xdeepfm, "xdeepfm", DEEP)]
        for sizes, options in [
            ([3], {"split_half": False, "activation": "identity"}),
            ([4, 3, 2], {"split_half": False, "activation": "relu"}),
            ([4, 2, 3], {"split_half": True, "activation": "identity"}),
        ]
    ],
]
IDS = [f"{config['name']}-{i}" for i, (_, config, _) in enumerate(CASES)]


@pytest.mark.parametrize(("reference", "config", "options"), CASES, ids=IDS)
@settings(deadline=None, max_examples=12)
@given(
    counts=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)),
    width=st.integers(1, 4),
    num_rows=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_logits_are_the_published_formula(reference, config, options, counts, width, num_rows, seed):
    assume(config["name"] != "dlrm" or sum(counts) > 1 or options["with_itself"])
    torch.manual_seed(seed)
    features = make_features(*counts)
    model, rows = random_model(config, features, width=width), random_rows(features, num_rows)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    x0 = model.embedding(rows).detach().numpy()
    values = model.linear.embedding(rows).detach().numpy() if hasattr(model, "linear") else x0
    expected = [
        reference(x, value, weights, num_embedded=counts[0] + counts[1], width=width, **options)
        for x, value in zip(x0, values, strict=True)
    ]
    np.testing.assert_allclose(model(rows).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("reference", "config", "options"), CASES, ids=IDS)
def test_gradients_are_right(reference, config, options):
    torch.manual_seed(0)
    # ReLU has a corner, where a numerical gradient is none.
    smooth = {**config, **({"deep": {**config["deep"], "activation": "tanh"}} if "deep" in config else {})}
    if "second" in config:
        smooth["second"] = {**config["second"], "activation": "tanh"}
    if "cin" in config:
        smooth["cin"] = {**config["cin"], "activation": "tanh"}
    features = make_features(2, 1, 1)
    model, rows = random_model(smooth, features, width=2), random_rows(features, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    x0 = model.embedding(rows).detach().requires_grad_()
    assert torch.autograd.gradcheck(model.logits, x0)
    assert torch.autograd.gradcheck(lambda *_: model(rows), tuple(model.parameters()))
