"""Run folders: what is saved is what comes back."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import polars as pl
import pytest
import torch

from crossrank.errors import RunError, SchemaError
from crossrank.runs import Run
from crossrank.runs.run import CALIBRATION
from crossrank.runs.writing import RECORDS


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "copy")
    return tmp_path / "copy"


def test_scores_after_reopening_equal_scores_before_saving_bit_for_bit(dataset, tmp_path, held) -> None:
    from crossrank.training import train

    reopened = train(dataset, into=tmp_path / "run", config={"training": {"epochs": 1}})
    features = [batch.features for batch in dataset.test.batches(8192)]
    assert torch.equal(held["model"].predict_logits(features), reopened.model.predict_logits(features))


def test_frame_file_and_dictionaries_score_alike(run, clicks, tmp_path) -> None:
    rows = clicks.head(200).drop("click")
    rows.write_csv(tmp_path / "rows.csv")
    rows.write_parquet(tmp_path / "rows.parquet")
    expected = run.predict(rows)
    np.testing.assert_array_equal(run.predict(tmp_path / "rows.csv"), expected)
    np.testing.assert_array_equal(run.predict(tmp_path / "rows.parquet"), expected)
    np.testing.assert_array_equal(run.predict(rows.to_dicts()), expected)
    np.testing.assert_array_equal(run.predict(rows.to_dicts()[0]), run.predict(rows.to_dicts()[:1]))
    np.testing.assert_array_equal(run.predict(rows.to_dict(as_series=False)), expected)


def test_shuffled_and_extra_columns_make_no_difference(run, clicks) -> None:
    rows = clicks.head(20)
    moved = rows.select(reversed(rows.columns)).with_columns(pl.lit("noise").alias("extra"))
    np.testing.assert_array_equal(run.predict(moved), run.predict(rows))


def test_unseen_and_missing_values_are_scored(run) -> None:
    names = run.schema.names
    nothing = dict.fromkeys(names)
    strange = {name: "never seen" if name not in ("price", "age_days") else 20.0 for name in names}
    scores = run.predict([nothing, strange])
    assert ((scores > 0) & (scores < 1)).all()


def test_a_missing_column_is_an_error_that_names_it(run, clicks) -> None:
    with pytest.raises(SchemaError, match="'country'"):
        run.predict(clicks.rename({"country": "cuontry"}))
    with pytest.raises(SchemaError, match="'country'"):
        run.predict([{"user": "u1"}])


def test_no_rows_give_no_scores(run, clicks) -> None:
    assert run.predict([]).shape == (0,)
    assert run.predict(clicks.head(0)).shape == (0,)


def test_one_row_gives_one_score(run, clicks) -> None:
    assert run.predict(clicks.head(1)).shape == (1,)


def test_a_folder_without_a_run_is_refused(tmp_path) -> None:
    with pytest.raises(RunError, match=r"no run\.json"):
        Run.open(tmp_path)


def test_a_later_format_is_refused_before_anything_else_is_read(copy) -> None:
    info = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(info | {"format_version": 2}))
    (copy / "model.safetensors").unlink()
    with pytest.raises(RunError, match="run format 1; got 2"):
        Run.open(copy)


FILES = ["config.json", "schema.json", "encoder/encoder.json", "encoder/vocabulary.safetensors", "model.safetensors"]


@pytest.mark.parametrize("name", [*FILES, *(name for name in RECORDS if name != CALIBRATION)])
def test_damage_is_noticed_in_every_file(copy, name) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(RunError, match=f"damaged: {name}"):
        Run.open(copy)


def test_an_edited_run_json_is_refused(copy) -> None:
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(RunError, match=r"damaged: run\.json"):
        Run.open(copy)


def test_a_run_without_these_checksums_opens_as_it_did(copy, run, clicks) -> None:
    info = json.loads((copy / "run.json").read_text())
    del info["checksum"], info["records"]
    (copy / "run.json").write_text(json.dumps(info))
    old = Run.open(copy)
    assert (old.report, old.curves, old.fingerprint) == (run.report, run.curves, run.fingerprint)
    np.testing.assert_array_equal(old.predict(clicks.head(5)), run.predict(clicks.head(5)))


def test_a_folder_that_is_replaced_while_it_is_open_is_not_mixed_with_its_successor(copy, run, tmp_path) -> None:
    opened = Run.open(copy)
    assert opened.config
    copy.rename(tmp_path / "before")
    shutil.copytree(run.path, copy, copy_function=shutil.copy)
    with pytest.raises(RunError, match=r"must be the one that was opened; encoder/\S+ was replaced since"):
        _ = opened.encoder


def test_others_may_read_what_the_umask_lets_them(run) -> None:
    assert {path.stat().st_mode & 0o777 for path in run.path.rglob("*") if path.is_file()} == {0o666 & ~umask()}


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_missing_file_is_named(copy) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors is missing"):
        Run.open(copy)


def test_a_run_holds_no_pickle(run) -> None:
    suffixes = {path.suffix for path in run.path.rglob("*") if path.is_file()}
    assert suffixes <= {".html", ".json", ".jsonl", ".safetensors"}


def test_what_stands_where_a_run_should_be_decides_what_to_do_instead(run, tmp_path) -> None:
    for name, hint in {
        "nowhere": "Check the path",
        "seeds": r"It has a run for each seed; name one of them: .*seeds/seed-0",
        "cut": "Its training did not finish: train again with --resume",
        "else": "Runs are made by: crossrank train",
    }.items():
        if name != "nowhere":
            (tmp_path / name).mkdir()
        if name == "seeds":
            (tmp_path / name / "seed-0").symlink_to(run.path)
        if name == "cut":
            (tmp_path / "cut.partial").mkdir()
        with pytest.raises(RunError, match=rf"must be a run folder; it has no run\.json\. {hint}"):
            Run.open(tmp_path / name)


def test_weights_and_settings_that_are_none_are_named_where_nobody_compared_checksums(copy) -> None:
    (copy / "model.safetensors").write_bytes(b"\0" * 8)
    with pytest.raises(RunError, match=r"model\.safetensors must hold the weights of this model"):
        _ = Run.open(copy, verify=False).model
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"model": {"name": "dnc"}}))
    with pytest.raises(RunError, match=r"config\.json cannot be used: .*dnc"):
        _ = Run.open(copy, verify=False).model


def test_probabilities_need_no_calibration(run, clicks) -> None:
    with pytest.raises(RunError, match=r"has no calibration\.json\. Its answers are probabilities or numbers"):
        run.predict(clicks.head(2), calibrated=True)


def test_a_run_is_shown_by_its_folder_and_its_model(run) -> None:
    assert repr(run) == f"Run('{run.path}', model='dcn-v2')"


def test_a_run_that_is_replaced_while_it_is_opened_is_opened_anew(copy, monkeypatch) -> None:
    verify, times = Run.verify, []

    def slow(self) -> None:
        times.append(self)
        if len(times) == 1:
            text = (copy / "run.json").read_text()
            (copy / "run.json").unlink()
            (copy / "run.json").write_text(text)
            raise RunError("files of two runs")
        verify(self)

    monkeypatch.setattr(Run, "verify", slow)
    assert Run.open(copy) is times[1] and len(times) == 2
