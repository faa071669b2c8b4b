"""The equations: tensors in, tensors out; torch alone."""

from crossrank.nn.activations import ACTIVATIONS, Activation, resolve_activation
from crossrank.nn.attention import InteractingLayer
from crossrank.nn.bi_interaction import BiInteraction
from crossrank.nn.cin import CompressedInteractionNetwork
from crossrank.nn.cross import CrossLayer, LowRankCrossLayer, MixtureCrossLayer, VectorCrossLayer
from crossrank.nn.deep import DeepNetwork
from crossrank.nn.embedding import FeatureEmbedding
from crossrank.nn.factorization import FactorizationMachine
from crossrank.nn.features import Bag, Features
from crossrank.nn.hashed_crosses import HashedCrosses
from crossrank.nn.hierarchical_attention import AttentionalAggregation, HierarchicalAttention, TransformerLayer
from crossrank.nn.linear import Linear, OutputLayer
from crossrank.nn.logarithmic import LogarithmicLayer
from crossrank.nn.network import CrossNetwork
from crossrank.nn.products import InnerProducts, OuterProducts
from crossrank.nn.residual import ResidualNetwork

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "AttentionalAggregation",
    "Bag",
    "BiInteraction",
    "CompressedInteractionNetwork",
    "CrossLayer",
    "CrossNetwork",
    "DeepNetwork",
    "FactorizationMachine",
    "FeatureEmbedding",
    "Features",
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
    "ResidualNetwork",
    "TransformerLayer",
    "VectorCrossLayer",
    "resolve_activation",
]
