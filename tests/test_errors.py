"""Error messages and their hints."""

from __future__ import annotations

import pytest

from crossrank import errors
from crossrank.errors import CrossRankError, MissingExtraError, did_you_mean, listing

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CrossRankError)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not MissingExtraError])
def test_an_error_keeps_message_and_hint_apart_and_prints_both(kind):
    error = kind("rank must be positive; got 0.", hint="Try 16.")
    assert (error.message, error.hint) == ("rank must be positive; got 0.", "Try 16.")
    assert str(error) == "rank must be positive; got 0. Try 16."
    assert str(kind("No hint.")) == "No hint."
    assert isinstance(error, CrossRankError)


def test_a_missing_extra_says_how_to_install_it():
    error = MissingExtraError("Exporting to ONNX", "onnx")
    assert str(error) == (
        "Exporting to ONNX needs the 'onnx' extra; it is not installed. Run: pip install 'crossrank[onnx]'"
    )


def test_a_listing_is_cut_and_never_empty():
    assert listing([]) == "none"
    assert listing("abc") == "'a', 'b', 'c'"
    assert listing("abcdefgh") == "'a', 'b', 'c', 'd', 'e', 'f' and 2 more"


def test_only_a_near_name_is_suggested():
    assert did_you_mean("embeding", ["embedding", "cross"]) == "Did you mean 'embedding'?"
    assert did_you_mean("zzz", ["embedding", "cross"]) == ""
    assert did_you_mean("zzz", []) == ""
