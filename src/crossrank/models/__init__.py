"""Layers assembled into networks that return logits, one file per model."""

from crossrank.models.base import Model
from crossrank.models.build import MODELS, build_model, parse_model_settings
from crossrank.models.own import register_model
from crossrank.models.settings import ModelSettings

__all__ = ["MODELS", "Model", "ModelSettings", "build_model", "parse_model_settings", "register_model"]
