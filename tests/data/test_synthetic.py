"""Click logs for work at scale: the same rows for the same seed, and a truth that is what it says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from crossrank.data.dataset import EncodedDataset
from crossrank.data.generators import criteo_like, synthetic
from crossrank.data.generators.criteo_like import CHUNK_ROWS, CROSSES, MISSING, SIZES, Chunk, truth
from crossrank.data.generators.planted import entropy, sigmoid
from crossrank.data.generators.synthetic import synthesize
from crossrank.data.prepare import prepare
from crossrank.data.sources import criteo
from crossrank.data.vocabulary import FIRST_ID, UNSEEN_ID
from crossrank.errors import ConfigError, DataError
from crossrank.schema import Schema

ROWS = CHUNK_ROWS + 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synthetic")


@pytest.fixture(scope="module")
def text(folder: Path) -> synthetic.SyntheticSummary:
    return synthesize(folder / "log.txt", rows=ROWS)


@pytest.fixture(scope="module")
def frame(text: synthetic.SyntheticSummary) -> pl.DataFrame:
    table = criteo.open_set(text.path)
    return pl.concat([chunk.frame for chunk in table.chunks()])


@pytest.fixture(scope="module")
def dataset(folder: Path) -> EncodedDataset:
    return EncodedDataset.open(synthesize(folder / "encoded", rows=ROWS, format="encoded").path)


@pytest.fixture(scope="module")
def many() -> Chunk:
    chunks = [truth().chunk(3, number, CHUNK_ROWS) for number in range(12)]
    codes = {name: np.concatenate([chunk.codes[name] for chunk in chunks]) for name in chunks[0].codes}
    parts = ([getattr(chunk, name) for chunk in chunks] for name in ("probability", "labels"))
    return Chunk(codes, *map(np.concatenate, parts))


def test_the_same_seed_gives_the_same_file_and_another_seed_another(
    text: synthetic.SyntheticSummary, tmp_path: Path
) -> None:
    again = synthesize(tmp_path / "again.txt", rows=ROWS)
    other = synthesize(tmp_path / "other.txt", rows=ROWS, seed=1)
    assert again.path.read_bytes() == text.path.read_bytes() != other.path.read_bytes()
    assert again.best_logloss == text.best_logloss


@pytest.mark.parametrize("rows", [1, 1000, CHUNK_ROWS])
def test_fewer_rows_are_the_beginning_of_more(text: synthetic.SyntheticSummary, tmp_path: Path, rows: int) -> None:
    fewer = synthesize(tmp_path / "fewer.txt", rows=rows).path.read_bytes()
    assert fewer.count(b"\n") == rows
    assert text.path.read_bytes().startswith(fewer)


def test_the_text_parses_as_criteo_does_and_says_what_was_drawn(frame: pl.DataFrame) -> None:
    assert frame.height == ROWS
    assert set(frame["label"].unique()) == {"0", "1"}
    chunks = [truth().chunk(0, 0, CHUNK_ROWS), truth().chunk(0, 1, ROWS - CHUNK_ROWS)]
    assert frame["label"].to_list() == [str(int(label)) for chunk in chunks for label in chunk.labels]
    for name in criteo.CATEGORICAL:
        assert frame[name].drop_nulls().str.contains("^[0-9a-f]{8}$").all()
        _, seen = np.unique(frame[name].fill_null("").to_numpy().astype("U8"), return_inverse=True)
        _, drawn = np.unique(np.concatenate([chunk.codes[name] for chunk in chunks]), return_inverse=True)
        assert len(set(zip(seen, drawn, strict=True))) == seen.max() + 1 == drawn.max() + 1  # one text, one code
    for column in truth().counts:
        codes = np.concatenate([chunk.codes[column.name] for chunk in chunks])
        shift = 4 if column.name == "I2" else 1
        read = frame[column.name].cast(pl.Int64).cast(pl.Float64).fill_null(float("nan")).to_numpy()
        np.testing.assert_allclose(np.log(read + shift), column.logged[codes])


def test_values_are_missing_as_often_as_declared(many: Chunk) -> None:
    for name, codes in many.codes.items():
        column = truth().columns[name]
        missing = np.isnan(column.logged)[codes] if isinstance(column, criteo_like.Count) else codes == 0
        assert missing.mean() == pytest.approx(MISSING.get(name, 0), abs=0.006), name


def test_vocabularies_have_the_declared_sizes_and_no_text_twice() -> None:
    assert sum(SIZES.values()) == pytest.approx(2.3e6, rel=0.01)
    assert (min(SIZES.values()), max(SIZES.values())) == (3, 600_000)
    for column in truth().categories:
        assert len(np.unique(column.texts[FIRST_ID:])) == SIZES[column.name]
        assert column.shares[FIRST_ID:].min() > 0
        assert column.shares.sum() == pytest.approx(1)


def test_values_are_drawn_as_often_as_their_shares_say_and_by_a_power_law(many: Chunk) -> None:
    for column in truth().categories:
        head = np.arange(min(FIRST_ID + 20, len(column.shares)))
        found = np.bincount(many.codes[column.name], minlength=len(head))[: len(head)] / len(many.labels)
        deviation = np.sqrt(column.shares[head] / len(many.labels))
        assert (np.abs(found - column.shares[head]) <= 5 * deviation).all(), column.name
        first, tenth = column.shares[FIRST_ID], column.shares[FIRST_ID + min(9, SIZES[column.name] - 1)]
        assert first / tenth == pytest.approx(min(10, SIZES[column.name]) ** criteo_like.POWER, rel=0.05)


def test_the_rate_of_ones_is_like_criteos_and_labels_follow_the_probability(many: Chunk) -> None:
    assert many.labels.mean() == pytest.approx(0.28, abs=0.01)  # Criteo's is 0.256
    for part in np.array_split(np.argsort(many.probability), 10):
        p = many.probability[part]
        assert abs((many.labels[part] - p).sum()) < 4.5 * math.sqrt((p * (1 - p)).sum())


def test_the_best_logloss_is_the_mean_over_many_draws_of_the_labels(tmp_path: Path) -> None:
    p, random = truth().chunk(0, 0, 2000).probability, np.random.default_rng(5)
    losses = [-np.where(random.random(len(p)) < p, np.log(p), np.log1p(-p)).mean() for _ in range(400)]
    best = synthesize(tmp_path / "log.txt", rows=2000).best_logloss
    assert best == pytest.approx(np.mean(losses), abs=4 * np.std(losses) / 20)


def test_crossed_numbers_have_mean_zero_and_variance_one_so_margins_of_crosses_vanish() -> None:
    assert {name for cross in CROSSES for name in cross} == set(criteo_like.RING)
    for name in criteo_like.RING:
        column = truth().columns[name]
        shares = np.full(criteo_like.SLICES, 1 / criteo_like.SLICES)
        if isinstance(column, criteo_like.Category):
            shares = column.shares
        numbers = column.numbers("cross")
        assert abs(numbers @ shares) < 1e-9
        assert numbers**2 @ shares == pytest.approx(1 - MISSING.get(name, 0), abs=1e-4)
        if SIZES.get(name, 0) > 100:
            assert abs(numbers * column.numbers("main") @ shares) < 0.5, "the main effect is another number"


@pytest.mark.parametrize("cross", CROSSES, ids="-".join)
def test_a_planted_cross_is_as_strong_as_declared_and_explained_by_no_column_alone(
    many: Chunk, cross: tuple[str, ...]
) -> None:
    part = truth().cross(cross, many.codes)
    present = math.prod(1 - MISSING.get(name, 0) for name in cross)
    assert part.std() == pytest.approx(CROSSES[cross] * math.sqrt(present), rel=0.1)
    for name in cross:
        sums, counts = np.bincount(many.codes[name], part), np.bincount(many.codes[name])
        explained = (sums**2 / np.maximum(counts, 1)).sum() / (part**2).sum()
        chance = (counts > 0).sum() / len(part)
        assert explained < 4 * chance + 0.003


@pytest.mark.parametrize("cross", CROSSES, ids="-".join)
def test_without_a_planted_cross_the_labels_are_predicted_worse(many: Chunk, cross: tuple[str, ...]) -> None:
    part = truth().cross(cross, many.codes)
    without = sigmoid(truth().logit(many.codes) - part)
    p = many.probability
    gain = np.where(many.labels, np.log(p / without), np.log((1 - p) / (1 - without)))
    assert gain.mean() > 0.001  # what counts on Criteo's set
    expected = p * np.log(p / without) + (1 - p) * np.log((1 - p) / (1 - without))
    assert gain.mean() == pytest.approx(expected.mean(), abs=5 * gain.std() / math.sqrt(len(p)))


def test_each_order_allows_the_declared_log_loss(many: Chunk) -> None:
    parts = {o: sum(truth().cross(cross, many.codes) for cross in CROSSES if len(cross) == o) for o in (2, 3, 4)}
    logit = truth().logit(many.codes) - sum(parts.values())
    for order, declared in criteo_like.BEST_BY_ORDER.items():
        logit = logit + parts.get(order, 0.0)
        bins = np.array_split(many.probability[np.argsort(logit)], 300)  # the truth, averaged over what is not seen
        assert np.mean([entropy(chunk.mean()) for chunk in bins]) == pytest.approx(declared, abs=0.002)


def test_the_truth_lies_beside_the_rows(text: synthetic.SyntheticSummary) -> None:
    known = json.loads(Path(f"{text.path}.truth.json").read_text())
    assert known["rows"] == text.rows == ROWS
    assert known["best_logloss"] == text.best_logloss
    assert known["base_rate"] == text.base_rate
    assert [tuple(cross["columns"]) for cross in known["crosses"]] == list(text.planted) == list(CROSSES)
    assert {len(cross) for cross in text.planted} == {2, 3, 4}


def test_the_encoded_dataset_holds_the_rows_of_the_text_divided_as_the_paper_divides(
    text: synthetic.SyntheticSummary, frame: pl.DataFrame, dataset: EncodedDataset, tmp_path: Path
) -> None:
    dataset.verify()
    prepared = prepare(
        criteo.open_set(text.path), criteo.schema(min_count=1), tmp_path / "prepared", split=criteo.SPLIT
    )
    for name in ("train", "valid", "test"):
        assert np.array_equal(dataset.split(name).labels, prepared.split(name).labels)
    rows = dataset.train
    assert rows.num_rows == round(ROWS * 6 / 7)
    for position, name in enumerate(criteo.CATEGORICAL):
        letters = dataset.encoder.vocabularies[name].tensors()["letters"].reshape(-1, 8)
        ids = rows.categorical[:, position].astype(np.int64)
        texts = np.where(ids == 0, "", letters[np.maximum(ids, FIRST_ID) - FIRST_ID].view("S8")[:, 0].astype("U8"))
        assert texts.tolist() == frame[name].head(rows.num_rows).fill_null("").to_list()


def test_encoded_numbers_are_what_the_encoder_makes_of_the_text(frame: pl.DataFrame, dataset: EncodedDataset) -> None:
    scaled = dataset.encoder.encode_rows(frame.head(50).with_columns(pl.lit(None).alias("C1")).to_dicts()).numeric
    np.testing.assert_array_equal(dataset.train.numeric[:50], scaled)


def test_the_encoder_knows_every_value_with_its_expected_count(dataset: EncodedDataset) -> None:
    for feature in dataset.features:
        if feature.kind == "categorical":
            assert feature.vocab_size == SIZES[feature.name] + FIRST_ID
            found = np.bincount(dataset.train.categorical[:, criteo.CATEGORICAL.index(feature.name)])[:3]
            counts = dataset.encoder.counts(feature.name)[:3]
            assert (np.abs(counts - found) <= 5 * np.sqrt(counts) + 1).all()


def test_a_schema_picks_columns_and_gives_rare_values_one_id(dataset: EncodedDataset, tmp_path: Path) -> None:
    schema = criteo.schema(min_count=10)
    fewer = Schema(schema.categorical[:3], schema.label)
    small = EncodedDataset.open(
        synthesize(tmp_path / "small", rows=ROWS, format="encoded", schema=fewer, progress=False).path
    )
    assert small.train.numeric.shape == (small.train.num_rows, 0)
    assert np.array_equal(small.train.labels, dataset.train.labels)
    for position, feature in enumerate(small.features):
        ids, all_ids = small.train.categorical[:, position], dataset.train.categorical[:, position]
        expected = truth().categories[position].shares * small.train.num_rows
        assert np.array_equal(ids, np.where(all_ids < feature.vocab_size, all_ids, UNSEEN_ID))
        assert feature.vocab_size == FIRST_ID + (np.rint(expected[FIRST_ID:]) >= 10).sum()
        counts = small.encoder.counts(feature.name)
        assert counts[UNSEEN_ID] == pytest.approx(expected[feature.vocab_size :].sum(), abs=1)


def test_an_existing_target_is_refused_unless_overwritten(folder: Path, text: synthetic.SyntheticSummary) -> None:
    with pytest.raises(DataError, match="must not exist yet"):
        synthesize(text.path, rows=10)
    (folder / "old.txt").write_text("old")
    assert synthesize(folder / "old.txt", rows=10, overwrite=True).path.read_text().count("\n") == 10


@pytest.mark.parametrize("form", ["text", "encoded"])
def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    def fail(seed: int, number: int, rows: int) -> Chunk:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(truth(), "chunk", fail)
    with pytest.raises(DataError, match="must be writable"):
        synthesize(tmp_path / "log", rows=10, format=form)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "at least one row; got rows=0"),
        ({"rows": 1, "format": "txt"}, "format must be one of 'text', 'encoded'; got 'txt'. Did you mean 'text'"),
        ({"rows": 1, "schema": criteo.schema()}, "A schema is for encoded rows; got one for text"),
        ({"rows": 1, "like": "avazu"}, "like must be one of 'criteo'; got 'avazu'"),
    ],
)
def test_wrong_arguments_are_refused_by_name(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        synthesize(tmp_path / "log", **arguments)  # type: ignore[arg-type]
