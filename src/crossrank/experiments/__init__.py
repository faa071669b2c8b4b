"""Experiments, written only on what the library offers everyone."""
