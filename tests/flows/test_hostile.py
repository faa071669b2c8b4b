"""What a stranger hands over, and what a shell does, ends in an error of ours or in the right result."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import polars as pl
import pytest
from commands import SMALL, crossrank

from crossrank.data import EncodedDataset
from crossrank.data.table import open_table
from crossrank.errors import CrossRankError, DataError
from crossrank.runs import Run

TAG = "<script>found()</script>"


@pytest.fixture
def run(place, tmp_path):
    """A run of a stranger's, in a folder of its own."""
    return shutil.copytree(place / "runs" / "first", tmp_path / "strange" / "run")


def edit(file, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_link_in_a_run_folder_is_not_written_through(run, tmp_path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    for name in (".report.html.partial", ".report.html.crossrank-partial", "report.html"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(mine)
    crossrank("report", run)
    assert mine.read_text() == "precious"
    assert not (run / "report.html").is_symlink()


def test_nothing_of_a_run_becomes_a_tag_on_its_page(run) -> None:
    report = json.loads((run / "report.json").read_text())
    side = {"parameters": 1, "multiply_adds": 1, "milliseconds": {TAG: 1.0}, "test": report["test"]}
    edit(run / "report.json", compression={"source": TAG, "rank": 3, "before": side, "after": side})
    edit(run / "run.json", finished=TAG, library_version=TAG, machine={TAG: TAG}, command=["crossrank", TAG])
    assert run_page(run).count("<script>") == run_page(run).count("</script>") - 1 == 3  # one more holds the numbers
    assert TAG not in run_page(run)
    edit(run / "report.json", compression={"source": TAG, "rank": TAG, "before": side, "after": side})
    _, talk = crossrank("report", run, code=2)
    assert "report.json is not what it must be: 'compression.rank' must be a whole number; got '<script>" in talk


def run_page(run) -> str:
    info = json.loads((run / "run.json").read_text())  # as a stranger would sign it
    for key in ("records", "checksum"):
        info.pop(key, None)
    (run / "run.json").write_text(json.dumps(info))
    crossrank("report", run, "--into", run / "page.html")
    return (run / "page.html").read_text()


def test_only_the_scripts_of_the_page_may_run(run) -> None:
    assert "script-src 'sha256-" in run_page(run)


WRONG = ["[]", "null", '"text"', "{}", "[" * 5000, "{", '{"format_version": 1, "seed": 1e999, "features": 3}']


@pytest.mark.parametrize("name", ["run.json", "config.json", "report.json", "encoder/encoder.json"])
def test_wrong_json_in_a_run_is_named(run, name) -> None:
    for wrong in WRONG:
        (run / name).write_text(wrong)
        with pytest.raises(CrossRankError, match=r"json|format"):
            opened = Run.open(run, verify=False)
            assert opened.model_settings and opened.report and opened.encoder
        crossrank("report", run, code=2)


@pytest.mark.parametrize("name", ["crosses.json", "curves.json", "importance.json", "spectrum.json", "metrics.jsonl"])
def test_wrong_json_beside_a_run_is_named(run, name) -> None:
    for wrong in ("[]", '{"layers": [3], "pairs": [{}], "split": 1}', "[" * 5000):
        (run / name).write_text(wrong)
        _, talk = crossrank("report", run, code=2)
        assert name in talk


def test_wrong_json_in_a_dataset_is_named(place, tmp_path) -> None:
    folder = shutil.copytree(place / "dataset", tmp_path / "dataset")
    for wrong in WRONG:
        (folder / "manifest.json").write_text(wrong)
        _, talk = crossrank("train", folder, "--into", tmp_path / "run", code=2)
        assert "manifest.json" in talk


@pytest.mark.parametrize("name", ["../../x.npy", "/dev/zero", "train/../../x.npy", "C:\\x", ""])
def test_a_manifest_names_files_of_its_folder_only(place, tmp_path, name) -> None:
    folder = shutil.copytree(place / "dataset", tmp_path / "dataset")
    manifest = json.loads((folder / "manifest.json").read_text())
    about = manifest["arrays"].pop("train/labels.npy")
    edit(folder / "manifest.json", arrays=manifest["arrays"] | {name: about})
    with pytest.raises(DataError, match="must be the name of a file below the folder"):
        EncodedDataset.open(folder)


def test_a_wrong_schema_is_named(place, tmp_path) -> None:
    words = ["prepare", place / "clicks.csv", "--schema", tmp_path / "schema.json", "--into", tmp_path / "made"]
    for wrong in (*WRONG, '{"label": {"name": "click"}, "features": [null]}'):
        (tmp_path / "schema.json").write_text(wrong)
        _, talk = crossrank(*words, code=2)
        assert "schema.json" in talk or "Each feature needs a 'name'" in talk


def test_a_wrong_row_is_refused(place) -> None:
    for wrong in ("[]", "null", "{", "[" * 5000, '{"user": "\\ud800"}', '{"user": [[1]]}', '{"hour": {}}'):
        crossrank("explain", place / "runs" / "first", "--row", wrong, code=2)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.deep.sizes=[1000000000]", "weights must fit into memory"),
        ("model.embedding.dim=1000000000000", "weights must fit into memory"),
        ("model.cross.num_layers=1000000000", "may have 1,000,000 layers, experts and members in all"),
        ("model.ensemble=1000000000", "model.ensemble must be from 1 to 1,000; got 1,000,000,000"),
        ("training.batch_size=100000000000000000000000", "'training.batch_size' must be a whole number"),
        ("training.learning_rate=1e999", "'training.learning_rate' must be a number"),
        ("model=3", "'model' must be a table of settings"),
        ("split=3", "'split' must be a table of settings"),
        ("model." + "a." * 3000 + "b=1", "is not a setting"),
        ("model.deep.sizes=" + "[" * 5000, "'model.deep.sizes' must be a list"),
    ],
)
def test_sizes_beyond_reason_are_refused_with_a_bound(place, tmp_path, word, message) -> None:
    _, talk = crossrank("train", place / "dataset", "--into", tmp_path / "run", "--set", word, code=2)
    assert message in talk
    assert not list(tmp_path.iterdir())


def test_hashed_columns_have_a_bound(place, tmp_path) -> None:
    schema = json.loads((place / "schema.json").read_text())
    schema["features"][0] = {"kind": "categorical", "name": "user", "hash_size": 10**12}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    words = ["--schema", tmp_path / "schema.json", "--into", tmp_path / "made"]
    assert "whose counts take 8 GiB" in crossrank("prepare", place / "clicks.csv", *words, code=2)[1]


@pytest.mark.filterwarnings("always")
def test_a_damaged_neighbour_does_not_fail_a_training(place, tmp_path) -> None:
    for name, wrong in (("a", "[]"), ("b", '{"format_version": 1}')):
        shutil.copytree(place / "runs" / "first", tmp_path / name)
        (tmp_path / name / "run.json").write_text(wrong)
    _, talk = crossrank("train", place / "dataset", "--into", tmp_path / "run", *SMALL)
    assert f"warning: {tmp_path / 'a'} is left out of the report: " in talk
    assert f"warning: {tmp_path / 'b'} is left out of the report: " in talk


def test_ids_that_no_table_has_are_refused(place, tmp_path) -> None:
    folder = shutil.copytree(place / "dataset", tmp_path / "dataset")
    array = np.load(folder / "train" / "categorical.npy", mmap_mode="r+")
    array[7, 0] = 4_000_000_000
    array.flush()
    manifest = json.loads((folder / "manifest.json").read_text())
    from crossrank.data.arrays import array_checksum

    manifest["arrays"]["train/categorical.npy"]["checksum"] = array_checksum(np.asarray(array))
    manifest.pop("checksum", None)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"categorical\.npy of .* must hold ids below .*; got 4,000,000,000"):
        EncodedDataset.open(folder).split("train")


@pytest.mark.parametrize("name", [".", "", "/", "n" * 250])
def test_what_is_made_needs_a_name(place, name) -> None:
    for words in (["train", "dataset", *SMALL], ["prepare", "clicks.csv"], ["report", "runs/first"], ["demo"]):
        _, talk = crossrank(*words, "--into", name, cwd=place, code=2)
        assert "The last part of --into must have 1 to 200 bytes" in talk


def test_numbers_of_commands_have_bounds(place, tmp_path) -> None:
    words = ["train", place / "dataset", "--into", tmp_path / "run", *SMALL]
    assert "must be a whole number of 64 bits" in crossrank(*words, "--seed", 10**22, code=2)[1]
    crossrank("demo", "--into", tmp_path / "demo", "--seed", 10**22, code=2)
    words = ["tune", place / "dataset", "--into", tmp_path / "search", "--jobs", "-1"]
    assert "jobs must be at least 1; got -1" in crossrank(*words, code=2)[1]


def test_rows_that_weigh_nothing_are_refused(clicks, tmp_path) -> None:
    clicks.with_columns(sample_weight=pl.lit(0.0)).write_csv(tmp_path / "zero.csv")
    _, talk = crossrank("train", tmp_path / "zero.csv", "--label", "click", "--into", tmp_path / "run", *SMALL, code=2)
    assert "weigh" in talk


@pytest.mark.parametrize("kind", ["encrypted", "flipped", "bomb"])
def test_a_strange_archive_is_refused(tmp_path, kind) -> None:
    path = tmp_path / "ml-1m.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("ml-1m/ratings.dat", "w") as file:
        for _ in range(300 if kind == "bomb" else 1):
            file.write(b"1::2::3::4\n" * 100_000)
    data = bytearray(path.read_bytes())
    if kind == "encrypted":
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
    elif kind == "flipped":
        data[100] ^= 0xFF
    path.write_bytes(data)
    words = ["prepare", path, "--source", "movielens-1m", "--into", tmp_path / "made"]
    _, talk = crossrank(*words, code=2)
    assert "has 24 MB at most" in talk if kind == "bomb" else f"{path} cannot be read: " in talk


def shell(place, redirect: str, *words: str) -> subprocess.CompletedProcess:
    command = f'exec "{sys.executable}" -m crossrank {" ".join(words)} {redirect}'
    return subprocess.run(["sh", "-c", command], cwd=place, capture_output=True, text=True, env={**os.environ})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")  # noqa: PTH110
def test_a_full_output_is_an_error_and_a_closed_one_is_not(place) -> None:
    full = shell(place, "> /dev/full", "evaluate", "runs/first", "--json")
    assert full.returncode == 2
    assert full.stderr.startswith("error: ")
    assert "Traceback" not in full.stderr
    assert shell(place, "2>&-", "evaluate", "runs/first").returncode == 0


def test_control_characters_do_not_reach_the_terminal(clicks, tmp_path) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
    clicks.rename({"country": f"c{evil}"}).with_columns(device=pl.lit(f"d{evil}")).write_csv(tmp_path / "evil.csv")
    said = ""
    for words in (["data", "describe"], ["schema"]):
        said += "".join(crossrank(*words, tmp_path / "evil.csv"))
    said += "".join(crossrank("train", tmp_path / "evil.csv", "--into", tmp_path / f"run{evil}", *SMALL))
    said += "".join(crossrank("explain", tmp_path / f"run{evil}", "--features"))
    said += "".join(crossrank("evaluate", tmp_path / evil, code=2))
    assert r"\x1b[31m\x9b2J\u202e" in said
    assert not any(letter in said for letter in "\x1b\x07\x9b\u202e")


def test_scores_hold_no_formulas_for_spreadsheets(place, clicks, tmp_path) -> None:
    texts = ["=cmd()", "+1", "-2.5", "-x", "@a", "\t=1", "-", "a=1", ""]
    rows = clicks.head(len(texts)).with_columns(country=pl.Series(texts), note=pl.Series(texts))
    rows.write_parquet(tmp_path / "rows.parquet")
    for suffix in ("csv", "parquet"):
        crossrank(
            "predict", place / "runs" / "first", tmp_path / "rows.parquet", "--into", tmp_path / f"scored.{suffix}"
        )
    kept = pl.read_parquet(tmp_path / "scored.parquet")
    assert kept["note"].to_list() == texts
    with (tmp_path / "scored.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    expected = ["'=cmd()", "+1", "-2.5", "'-x", "'@a", "'\t=1", "-", "a=1", ""]
    assert [row["note"] for row in written] == [row["country"] for row in written] == expected
    assert [np.float32(row["probability"]) for row in written] == kept["probability"].to_list()


def _read(path) -> str:
    try:
        return str(open_table(path).head().height)
    except DataError as error:
        return str(error)


def test_a_fork_of_a_process_that_read_a_table_says_so_instead_of_hanging(place) -> None:
    open_table(place / "clicks.csv").head()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert "must not be forked" in pool.apply_async(_read, (place / "clicks.csv",)).get(timeout=60)
