"""Folders of every format there was, which must open for ever with the same answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from crossrank.data import EncodedDataset
from crossrank.errors import CrossRankError
from crossrank.runs import Run
from crossrank.serving.bundle import Bundle
from crossrank.serving.scorer import Scorer

FORMATS = sorted(path for path in Path(__file__).parent.iterdir() if (path / "expected.json").is_file())
OPENERS = {"run": Run.open, "dataset": EncodedDataset.open, "bundle": Bundle.open}
FILES = {"run": "run.json", "dataset": "manifest.json", "bundle": "manifest.json"}


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def golden(request, tmp_path):
    """A copy: what is read must not be in need of being written."""
    return Path(shutil.copytree(request.param, tmp_path / "golden"))


def test_a_run_and_a_bundle_of_every_format_answer_as_they_did(golden) -> None:
    expected = json.loads((golden / "expected.json").read_text())
    run = Run.open(golden / "run")
    np.testing.assert_allclose(run.predict(expected["rows"]), expected["scores"], rtol=1e-5)
    np.testing.assert_allclose(Scorer.open(golden / "bundle").score(expected["rows"]), expected["scores"], rtol=1e-5)
    assert run.report["valid"]["rows"] > 0 and run.metrics and run.crosses and run.spectrum
    assert run.curves and run.importance and run.fingerprint == Bundle.open(golden / "bundle").fingerprint


def test_a_dataset_of_every_format_has_the_rows_it_had(golden) -> None:
    expected = json.loads((golden / "expected.json").read_text())
    dataset = EncodedDataset.open(golden / "dataset")
    dataset.verify()
    assert dataset.train.labels.tolist() == expected["labels"]
    assert dataset.fingerprint == Run.open(golden / "run").info["data_fingerprint"]


@pytest.mark.parametrize("kind", OPENERS)
def test_a_newer_format_is_refused_and_says_so(golden, kind) -> None:
    file = golden / kind / FILES[kind]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    with pytest.raises(CrossRankError, match=r"99.* written by (a newer|another version of) crossrank"):
        OPENERS[kind](golden / kind)


@pytest.mark.parametrize("kind", OPENERS)
def test_every_flipped_byte_is_noticed_before_it_is_used(kind, tmp_path) -> None:
    """In every file of the present formats, at the start, in the middle and at the end."""
    source = FORMATS[[path.name for path in FORMATS].index("signed")] / kind
    for file in sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file()):
        size = (source / file).stat().st_size
        for place in {0, size // 3, size // 2, size - 1} if size else ():
            folder = Path(shutil.copytree(source, tmp_path / "copy"))
            content = bytearray((folder / file).read_bytes())
            content[place] ^= 1
            (folder / file).write_bytes(content)
            try:
                opened = OPENERS[kind](folder)
                if kind == "dataset":
                    opened.verify()
            except CrossRankError as error:
                assert file.name in str(error) or "must be" in str(error)
            else:  # what stands between the words of JSON, or behind its end, means nothing
                assert file.name == FILES[kind] and json.loads(content) == json.loads((source / file).read_text())
            shutil.rmtree(folder)
