"""Crosses and spectra as objects, and as the JSON of every version."""

from __future__ import annotations

import dataclasses
import json

import pytest

from crossrank.results import Cross, Spectrum

PAIR = {"left": "a", "right": "b", "strength": 0.5, "norm": 2.0, "strengths": [0.1, 0.4], "norms": [1.0, 1.5]}


def test_a_pair_of_an_earlier_version_is_read_and_written_as_it_was() -> None:
    line = {**PAIR, "layer": 2, "network": 1}
    cross = Cross.from_dict(json.loads(json.dumps(line)))
    assert (cross.features, cross.name, cross.layer) == (("a", "b"), "a × b", 2)
    assert cross.strengths == (0.1, 0.4)
    assert json.loads(json.dumps(cross.to_dict())) == line
    assert {key: cross[key] for key in line} == line


def test_a_cross_may_have_more_than_two_features() -> None:
    cross = Cross(features=("a", "b", "c"), strength=0.5, norm=2.0)
    assert cross.name == "a × b × c"
    assert "left" not in cross.to_dict()
    assert Cross.from_dict(json.loads(json.dumps(cross.to_dict()))) == cross


def test_a_feature_with_itself_is_told_from_a_pair() -> None:
    assert Cross(features=("a", "a"), strength=0.5, norm=2.0).of_itself
    assert not Cross.from_dict(PAIR).of_itself


def test_a_spectrum_comes_back_as_it_was_written() -> None:
    spectrum = Spectrum(network=1, layer=2, values=(3.0, 1.0), used=(2.0, 0.0), initial=(4.0, 4.0))
    assert Spectrum.from_dict(json.loads(json.dumps(spectrum.to_dict()))) == spectrum


def test_results_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cross.from_dict(PAIR).strength = 1.0
