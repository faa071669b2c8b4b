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
from crossrank.nn.factorization import FactorizationMachine
from crossrank.nn.features import Bag, Features
from crossrank.nn.general import GeneralCrossLayer
from crossrank.nn.hashed_crosses import HashedCrosses
from crossrank.nn.hierarchical_attention import AttentionalAggregation, HierarchicalAttention, TransformerLayer
from crossrank.nn.linear import Linear, OutputLayer
from crossrank.nn.logarithmic import LogarithmicLayer
from crossrank.nn.mixture import MixtureCrossLayer
from crossrank.nn.network import CrossNetwork
from crossrank.nn.pairs import PairProducts
from crossrank.nn.products import InnerProducts, OuterProducts
from crossrank.nn.residual import ResidualNetwork
from crossrank.nn.separable import SeparableCrossLayer

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "AttentionalAggregation",
    "Bag",
    "BaseCrossLayer",
    "BiInteraction",
    "CompressedInteractionNetwork",
    "CrossLayer",
    "CrossNetwork",
    "DeepNetwork",
    "FactorizationMachine",
    "FeatureEmbedding",
    "Features",
    "GeneralCrossLayer",
    "HashedCrosses",
    "HierarchicalAttention",
    "InnerProducts",
    "InteractingLayer",
    "Linear",
    "LogarithmicLayer",
    "LowRankCrossLayer",
    "MixtureCrossLayer",
    "OuterProducts",
    "OutputLayer",
    "PairProducts",
    "ResidualNetwork",
    "SeparableCrossLayer",
    "TransformerLayer",
    "VectorCrossLayer",
    "resolve_activation",
]
