"""The equations: tensors in, tensors out; torch alone.

Every layer is an ordinary ``nn.Module`` and goes into any network of yours:

    >>> from torch import nn, randn
    >>> from crossrank.nn import CrossNetwork, DeepNetwork, OutputLayer
    >>> network = nn.Sequential(CrossNetwork(8, num_layers=2), DeepNetwork(8, sizes=[16]), OutputLayer(16))
    >>> network(randn(5, 8)).shape
    torch.Size([5])

To train such a network with crossrank, see :mod:`crossrank.models.own`.
"""

from crossrank.nn.activations import ACTIVATIONS, Activation, resolve_activation
from crossrank.nn.attention import InteractingLayer
from crossrank.nn.bi_interaction import BiInteraction
from crossrank.nn.cin import CompressedInteractionNetwork
from crossrank.nn.cross import CrossLayer, LowRankCrossLayer, VectorCrossLayer
from crossrank.nn.cross_base import BaseCrossLayer
from crossrank.nn.deep import DeepNetwork
from crossrank.nn.embedding import FeatureEmbedding
from crossrank.nn.experts import GatedExperts
from crossrank.nn.factorization import FactorizationMachine
from crossrank.nn.factorized import FactorizedLayer, FactorizedNetwork
from crossrank.nn.features import Bag, Features
from crossrank.nn.field_gate import FieldGate
from crossrank.nn.fusion import BilinearFusion
from crossrank.nn.gates import FeatureGate
from crossrank.nn.general import GeneralCrossLayer
from crossrank.nn.hashed_crosses import HashedCrosses
from crossrank.nn.hierarchical_attention import AttentionalAggregation, HierarchicalAttention, TransformerLayer
from crossrank.nn.linear import Linear, OutputLayer
from crossrank.nn.logarithmic import LogarithmicLayer
from crossrank.nn.mask import MaskBlock
from crossrank.nn.masked_cross import MaskedCrossLayer, QuadraticCrossLayer
from crossrank.nn.mixture import MixtureCrossLayer
from crossrank.nn.network import CrossNetwork
from crossrank.nn.pairs import PairProducts
from crossrank.nn.products import InnerProducts, OuterProducts
from crossrank.nn.residual import ResidualNetwork
from crossrank.nn.separable import SeparableCrossLayer
from crossrank.nn.wukong import FactorizationBlock, WukongLayer

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "AttentionalAggregation",
    "Bag",
    "BaseCrossLayer",
    "BiInteraction",
    "BilinearFusion",
    "CompressedInteractionNetwork",
    "CrossLayer",
    "CrossNetwork",
    "DeepNetwork",
    "FactorizationBlock",
    "FactorizationMachine",
    "FactorizedLayer",
    "FactorizedNetwork",
    "FeatureEmbedding",
    "FeatureGate",
    "Features",
    "FieldGate",
    "GatedExperts",
    "GeneralCrossLayer",
    "HashedCrosses",
    "HierarchicalAttention",
    "InnerProducts",
    "InteractingLayer",
    "Linear",
    "LogarithmicLayer",
    "LowRankCrossLayer",
    "MaskBlock",
    "MaskedCrossLayer",
    "MixtureCrossLayer",
    "OuterProducts",
    "OutputLayer",
    "PairProducts",
    "QuadraticCrossLayer",
    "ResidualNetwork",
    "SeparableCrossLayer",
    "TransformerLayer",
    "VectorCrossLayer",
    "WukongLayer",
    "resolve_activation",
]
