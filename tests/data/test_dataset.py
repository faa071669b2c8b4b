from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from crossrank.data import DatasetWriter, EncodedDataset, Encoder, arrays, open_data
from crossrank.data.arrays import ArrayWriter
from crossrank.data.prepare import prepare
from crossrank.data.rows import LabeledRows
from crossrank.errors import DataError
from crossrank.folders import MARK
from crossrank.schema import Categorical, Label, Multivalent, Numeric, Schema

SCHEMA = Schema(
    [Categorical(name="x"), Multivalent(name="tags"), Numeric(name="n")], Label(name="click"), weight="w", group="user"
)
FRAME = pl.DataFrame(
    {
        "x": [f"v{i % 7}" for i in range(200)],
        "tags": ["|".join("abc"[: i % 4]) or None for i in range(200)],
        "n": np.arange(200.0),
        "click": np.arange(200) % 2,
        "w": np.arange(200) / 4,
        "user": [f"u{i // 5}" for i in range(200)],
    }
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return prepare(FRAME, SCHEMA, tmp_path_factory.mktemp("original") / "dataset")


@pytest.fixture
def copy(original, tmp_path):
    return shutil.copytree(original.path, tmp_path / "dataset")


def test_a_dataset_opens_where_polars_is_not_installed(original):
    program = f"""
import sys
sys.modules["polars"] = sys.modules["typer"] = None
from crossrank.data import EncodedDataset
dataset = EncodedDataset.open({str(original.path)!r})
assert sum(len(batch) for batch in dataset.train.batches(32, seed=0)) == dataset.num_rows["train"]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_data_are_opened_as_what_they_are(original, tmp_path):
    FRAME.drop("tags").write_csv(tmp_path / "rows.csv", separator=";")
    assert open_data(original) is original
    assert open_data(str(original.path)).fingerprint == original.fingerprint
    assert open_data(tmp_path / "rows.csv", separator=";").num_rows() == open_data(FRAME).num_rows() == 200


def test_the_arrays_are_true_npy_files(original):
    for split in ("train", "valid", "test"):
        stored = original.split(split)
        folder = original.path / split
        assert np.array_equal(np.load(folder / "categorical.npy"), stored.categorical)
        assert np.array_equal(np.load(folder / "numeric.npy", mmap_mode="r"), stored.numeric)
        assert np.array_equal(np.load(folder / "0.bag_offsets.npy"), stored.bags[0][1])
        assert np.array_equal(np.load(folder / "labels.npy"), stored.labels)


def test_splits_are_named_and_unknown_ones_refused(original):
    assert list(original.num_rows) == ["train", "valid", "test"] and sum(original.num_rows.values()) == 200
    assert len(original.train) == original.train.num_rows == original.num_rows["train"]
    with pytest.raises(DataError, match=r"has rows for 'train', 'valid', 'test'; got 'tset'.* Did you mean 'test'\?"):
        original.split("tset")


def test_an_empty_split_is_absent(tmp_path):
    from crossrank.data import SplitSettings

    dataset = prepare(FRAME, SCHEMA, tmp_path / "d", split=SplitSettings(fractions=(1.0,)))
    assert dataset.num_rows == {"train": 200}
    with pytest.raises(DataError, match="has rows for 'train'; got 'valid'"):
        dataset.valid  # noqa: B018


@pytest.mark.parametrize("name", ["train/categorical.npy", "valid/0.bag_ids.npy", "test/labels.npy"])
def test_truncated_lengthened_and_missing_arrays_are_refused(copy, name):
    path = copy / name
    data = path.read_bytes()
    for changed in (data[:-1], data + b"x", data[:64]):
        path.write_bytes(changed)
        with pytest.raises(DataError, match=r"must have .* bytes; got .* prepare it again"):
            EncodedDataset.open(copy)
    path.write_bytes(data.replace(b"<", b">", 1))
    with pytest.raises(DataError, match="its header differs"):
        EncodedDataset.open(copy)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        EncodedDataset.open(copy)


def _change_manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_that_is_no_dataset_is_refused(copy, tmp_path):
    _change_manifest(copy, format_version=99)
    with pytest.raises(DataError, match="must have format version 1; got 99"):
        EncodedDataset.open(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(
        json.dumps({key: manifest[key] for key in ("format", "splits")} | {"format_version": 1})
    )
    with pytest.raises(DataError, match="'arrays' must be given; it is missing"):
        EncodedDataset.open(copy)
    _change_manifest(copy, format="something else")
    with pytest.raises(DataError, match="must be an encoded dataset"):
        EncodedDataset.open(copy)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="must be readable JSON"):
        EncodedDataset.open(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"got a folder without manifest\.json\. Make one with: crossrank prepare"):
        EncodedDataset.open(copy)
    with pytest.raises(DataError, match="got no such folder"):
        EncodedDataset.open(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["train/numeric.npy", "encoder/vocabulary.safetensors"])
def test_verify_finds_a_changed_byte(copy, name):
    EncodedDataset.open(copy).verify()
    with (copy / name).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(DataError, match=f"damaged: {name} is not what was written"):
        EncodedDataset.open(copy).verify()


def test_checksums_of_older_datasets_are_read_too(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["checksum"]
    for name, about in manifest["arrays"].items():
        content = (copy / name).read_bytes()[arrays.HEADER_BYTES :]
        about["checksum"] = hashlib.blake2b(content, digest_size=16).hexdigest()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    EncodedDataset.open(copy).verify()
    with (copy / "train/labels.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    with pytest.raises(DataError, match=r"train/labels\.npy"):
        EncodedDataset.open(copy).verify()


def _rows(count=3):
    encoder = Encoder.fit(FRAME, SCHEMA)
    targets = (np.zeros(count, np.float32), np.ones(count, np.float32), np.zeros(count, np.uint32))
    return encoder, LabeledRows(encoder.encode(FRAME.head(count)), *targets)


def test_the_writer_leaves_nothing_behind_when_it_is_left_early(tmp_path):
    _, rows = _rows()
    with pytest.raises(KeyboardInterrupt), DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        writer.append("train", rows)
        assert writer.folder.is_dir()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported_and_nothing_left(tmp_path, monkeypatch):
    _, rows = _rows()

    def full(self, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    with DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        monkeypatch.setattr(ArrayWriter, "append", full)
        with pytest.raises(DataError, match=r"must be writable; got: No space left on device\. The disk is full"):
            writer.append("train", rows)
    assert not list(tmp_path.iterdir())


def test_an_existing_target_is_kept_unless_overwriting_a_dataset(tmp_path):
    encoder, rows = _rows()
    target = tmp_path / "d"
    target.mkdir()
    (target / "precious.txt").write_text("do not lose")
    for overwrite, message in ((False, "must not exist yet"), (True, "Only an encoded dataset can be overwritten")):
        with pytest.raises(DataError, match=message), DatasetWriter(target, SCHEMA, overwrite=overwrite):
            pass
    assert (target / "precious.txt").read_text() == "do not lose"
    (target / "precious.txt").rename(target / "manifest.json")
    with DatasetWriter(target, SCHEMA, overwrite=True) as writer:
        writer.append("train", rows)
        assert (target / "manifest.json").read_text() == "do not lose"
        writer.finish(encoder, {})
    assert EncodedDataset.open(target).num_rows == {"train": 3} and [*tmp_path.iterdir()] == [target]


def test_leftovers_of_dead_runs_go_and_living_ones_stay(tmp_path):
    stale = tmp_path / "d.partial"
    (stale / "train").mkdir(parents=True)
    (stale / MARK).touch()
    with DatasetWriter(tmp_path / "d", SCHEMA) as living:
        assert not (stale / "train").exists() and living.folder == stale
        with pytest.raises(DataError, match=f"one command at a time; process {os.getpid()} on"):
            DatasetWriter(tmp_path / "d", SCHEMA).__enter__()
        assert living.folder.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["d.partial", "d.partial-backup", ".d.old", "d.partial-notes.txt"])
def test_what_others_made_is_never_removed(tmp_path, name):
    foreign, (encoder, rows) = tmp_path / name, _rows()
    (foreign if name.endswith("txt") else foreign / "thesis").mkdir(parents=True)
    try:
        with DatasetWriter(tmp_path / "d", SCHEMA) as writer:
            writer.append("train", rows)
            writer.finish(encoder, {})
    except DataError as error:
        assert name == "d.partial" and "Move it away, or choose another name" in str(error)
    assert foreign.is_dir() and len(list(tmp_path.iterdir())) == (1 if name == "d.partial" else 2)


def test_rows_may_come_split_by_split_in_any_order(tmp_path):
    encoder, rows = _rows(7)
    with DatasetWriter(tmp_path / "d", SCHEMA) as writer:
        for split in ("test", "train", "test"):
            writer.append(split, rows)
        writer.finish(encoder, {"note": "hello"})
    dataset = EncodedDataset.open(tmp_path / "d")
    assert dataset.num_rows == {"train": 7, "test": 14} and dataset.manifest["note"] == "hello"
    ids, offsets = dataset.test.bags[0]
    twice = np.concatenate([np.diff(rows.encoded.bags[0][1])] * 2)
    assert np.array_equal(np.diff(offsets), twice) and offsets[-1] == len(ids)
