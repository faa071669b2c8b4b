"""Every model as a bundle that answers as its run does."""

from __future__ import annotations

import json
import math
import shutil
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from crossrank.data.rows import EncodedRows
from crossrank.errors import BundleError, ConfigError, DataError, MissingExtraError
from crossrank.models import MODELS, Model, register_model
from crossrank.nn import Bag, FeatureEmbedding, Features
from crossrank.nn.embedding import _scattered_mean
from crossrank.schema import Categorical, Label, Numeric
from crossrank.serving import compiled
from crossrank.serving import export as exporting
from crossrank.serving.bundle import Bundle
from crossrank.serving.export import export
from crossrank.serving.made_up_rows import draw_rows
from crossrank.serving.packed_tables import PackedEmbedding, packed
from crossrank.serving.parity import LOSS_DIFFERENCE, ParityRows, check_parity, measure_parity
from crossrank.serving.scorer import Scorer

from .conftest import STRANGE, table

CLASSES = Label(name="y", kind="classes", classes=("no", "maybe", "yes"))
CASES = {
    **{name: {"name": name} for name in MODELS},
    "ensemble": {"ensemble": 2},
    "several widths": {"embedding": {"dim": "rule"}},
    "classes": {"label": CLASSES},
    "a number": {"label": Label(name="y", kind="real")},
    "separable": {"cross": {"context": ["user", "age", "price"]}},
    "switches": {"cross": {"source": "previous", "inner": "relu", "heads": 2, "gate": "information"}},
    "pooled": {"cross": {"pooled": "each", "context": ["user"]}},
    "ids alone": {"columns": [Categorical(name="user")]},
    "numbers alone": {"columns": [Numeric(name="age", encoding="scalar")]},
    "a linear term without numbers": {"name": "fm", "columns": [Categorical(name="user"), Categorical(name="tags")]},
}
# Exponentials of sums of logarithms, norms that divide by small deviations: torch itself is as far from float64.
TOLERANCE = dict.fromkeys(("afn", "edcn", "wukong", "qnn-alpha"), 3e-6)
QUICK = ("dcn-v2", "wide-deep")


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_bundle_answers_as_its_run_for_any_number_of_rows(case, make_run, tmp_path):
    run, near = make_run(**CASES[case]), {"atol": TOLERANCE.get(case, 1e-6)}
    scorer = Scorer.open(export(run, tmp_path / "bundle").path)
    frame = table(3000, seed=5)
    np.testing.assert_allclose(scorer.score(frame), run.predict(frame), **near)
    for count in (0, 1, 2, 7):
        rows = frame.head(count).to_dicts()
        np.testing.assert_allclose(scorer.score(rows), run.predict(rows), **near)
        assert scorer.score(rows).shape == run.predict(rows).shape
    np.testing.assert_allclose(scorer.score(STRANGE), run.predict(STRANGE), **near)


def test_a_bundle_says_what_it_was_compared_on_and_names_no_file_of_this_machine(bundle, run, dataset):
    manifest = json.loads((bundle / "manifest.json").read_text())
    parity = manifest["parity"]
    assert manifest["run"] == run.fingerprint and manifest["precision"] == "float32"
    assert parity["source"] == "validation rows" and parity["rows"] == dataset.num_rows["valid"]
    assert parity["largest_difference"] <= 1e-5 and abs(parity["loss_difference"]) <= 1e-6
    assert set(manifest["checksums"]) == {
        *("schema.json", "rows.json", "model.onnx", "model.onnx.data"),
        *("encoder/encoder.json", "encoder/vocabulary.safetensors"),
    }
    assert b"crossrank/" not in (bundle / "model.onnx").read_bytes()


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_fewer_bits_take_less_room_and_answer_nearly_the_same(precision, run, clicks, bundle, tmp_path):
    small = export(run, tmp_path / "bundle", precision=precision, data=clicks)
    assert (small.path / "model.onnx.data").stat().st_size < (bundle / "model.onnx.data").stat().st_size
    assert small.manifest["parity"]["source"] == "given rows"
    difference = np.abs(Scorer.open(small.path).score(clicks) - run.predict(clicks)).max()
    assert 1e-6 < difference < 1e-2
    assert Scorer.open(small.path).precision == precision


def test_int8_rows_are_whole_multiples_of_the_rows_own_scale():
    torch.manual_seed(0)
    plain = FeatureEmbedding([5, 4], [3, 1], num_numeric=1)
    with torch.no_grad():
        plain.table(0)[2] = 0
    quantized = packed_copy(plain, "int8")
    features = Features(torch.tensor([[i, i % 4] for i in range(5)]), torch.ones(5, 1))
    for i, found in enumerate(quantized(features).tolist()):
        row = plain.table(0)[i].tolist()
        scale = max(map(abs, row)) / 127 or 1.0
        assert found[:3] == pytest.approx([round(x / scale) * scale for x in row], abs=1e-7)
        assert found[3:] == [plain.table(1)[i % 4].item(), 1.0]  # a number for each row would save nothing
    assert quantized.table_0.dtype == torch.int8


def test_bfloat16_rows_are_rounded_to_eight_bits():
    plain = FeatureEmbedding([9], [4])
    features = Features(torch.arange(9)[:, None], torch.empty(9, 0))
    found = packed_copy(plain, "bfloat16")(features)
    for x, y in zip(plain.table(0).flatten().tolist(), found.flatten().tolist(), strict=True):
        step = 2.0 ** (math.floor(math.log2(abs(x))) - 7)
        assert y == round(x / step) * step


def packed_copy(embedding, precision):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = embedding

    copy = packed(Holder(), precision).embedding
    assert type(copy) is PackedEmbedding and type(embedding) is FeatureEmbedding
    return copy


def test_float32_tables_are_shared_and_not_copied(make_run):
    model = make_run().model
    table = packed(model, "float32").embedding.tables[0]
    assert table.data_ptr() == model.embedding.weight.data_ptr()


def test_means_of_bags_in_the_graph_are_those_of_the_layer():
    draw = torch.Generator().manual_seed(0)
    for lengths in ([2, 0, 3, 0], [0, 0, 1], [0, 0], [4]):
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        vectors = torch.randn(int(offsets[-1]), 3, generator=draw, dtype=torch.float64)
        found = _scattered_mean(vectors, offsets)
        for row, (start, stop) in zip(found, pairwise(offsets), strict=True):
            expected = sum(vectors[i] for i in range(start, stop)) / max(int(stop - start), 1)
            assert torch.allclose(row, torch.as_tensor(expected, dtype=torch.float64).expand(3))


def test_a_loss_difference_without_labels_is_the_divergence(make_run):
    run = make_run(columns=[Categorical(name="user")])
    rows = run.encoder.encode_rows(draw_rows(run.encoder, 50))
    p = run.answers([rows.features()]).astype(float)
    q = p * 0.9
    parity = measure_parity(run, lambda rows: q, ParityRows(rows, "drawn"))
    divergence = sum(
        x * math.log(x / y) + (1 - x) * math.log((1 - x) / (1 - y)) for x, y in zip(p, q, strict=True)
    ) / len(p)
    assert parity["loss_difference"] == pytest.approx(divergence, rel=1e-6)
    assert parity["largest_difference"] == pytest.approx((p - q).max())


def test_a_loss_difference_with_labels_is_of_the_log_loss(make_run):
    run = make_run(columns=[Categorical(name="user")], label=CLASSES)
    rows = run.encoder.encode_rows(draw_rows(run.encoder, 6))
    p, labels = run.answers([rows.features()]).astype(float), np.array([0, 1, 2, 0, 1, 2], np.float32)
    q = (p + 0.1) / (p + 0.1).sum(axis=1, keepdims=True)
    found = measure_parity(run, lambda rows: q, ParityRows(rows, "given", labels))["loss_difference"]
    expected = sum(math.log(p[i, int(y)] / q[i, int(y)]) for i, y in enumerate(labels)) / 6
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "parity", "fine"),
    [
        ("float32", {"largest_difference": 1e-5, "loss_difference": 1}, True),
        ("float32", {"largest_difference": 2e-5, "loss_difference": 0}, False),
        ("float32", {"largest_difference": math.nan, "loss_difference": 0}, False),
        ("int8", {"largest_difference": 1e-2, "loss_difference": -LOSS_DIFFERENCE}, True),
        ("int8", {"largest_difference": 0, "loss_difference": 2 * LOSS_DIFFERENCE}, False),
    ],
)
def test_the_bound_depends_on_the_precision(precision, parity, fine):
    parity |= {"rows": 10, "source": "drawn"}
    if fine:
        check_parity(parity, precision)
    else:
        with pytest.raises(BundleError, match="nothing was written"):
            check_parity(parity, precision)


@pytest.fixture
def own(make_run):
    """A function that makes a run of a model with its own last step."""

    def make(last):
        @register_model("own")
        class Own(Model):
            def __init__(self, layout, settings):
                super().__init__(layout)
                self.output = nn.Linear(layout.input_dim, 1)

            def logits(self, x0):
                return last(self.output(x0)[:, 0])

        return make_run("own")

    yield make
    del MODELS["own"]


def test_a_graph_that_answers_otherwise_is_not_written(own, tmp_path):
    run = own(lambda logits: logits + (1.0 if torch.onnx.is_in_onnx_export() else 0.0))
    with pytest.raises(BundleError, match=r"at most 1e-05; got .* on 1,024 rows"):
        export(run, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_a_model_that_looks_at_values_is_refused_in_a_line(own, tmp_path):
    run = own(lambda logits: logits + 1 if logits.any().item() else logits)
    with pytest.raises(BundleError, match="that torch can export to ONNX; got: ") as raised:
        export(run, tmp_path / "bundle")
    assert len(raised.value.message) < 300 and "\n" not in raised.value.message
    assert not list(tmp_path.iterdir())


def test_what_stands_there_is_not_replaced_unasked(bundle, run, tmp_path, monkeypatch):
    with pytest.raises(BundleError, match="must not exist yet"):
        export(run, bundle)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BundleError, match="not a bundle"):
        export(run, tmp_path, overwrite=True)
    monkeypatch.setattr(exporting, "write_graph", interrupted)
    before = sorted(bundle.parent.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        export(run, bundle, overwrite=True)
    assert sorted(bundle.parent.rglob("*")) == before
    Bundle.open(bundle)


def interrupted(*_):
    raise KeyboardInterrupt


def test_wrong_arguments_are_refused_with_the_right_ones(run, dataset, make_run, tmp_path):
    with pytest.raises(ConfigError, match="'float32', 'bfloat16', 'int8'; got 'int4'"):
        export(run, tmp_path / "bundle", precision="int4")
    with pytest.raises(ConfigError, match="'onnx', 'pt2'; got 'tf'"):
        export(run, tmp_path / "bundle", format="tf")
    with pytest.raises(DataError, match="encoder is another"):
        export(make_run(), tmp_path / "bundle", data=dataset)


def test_exporting_without_the_extra_says_how_to_install_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'crossrank\[export\]'"):
        export(run, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_drawn_rows_can_be_encoded_and_cover_unseen_and_missing_values(make_run):
    encoder = make_run().encoder
    rows = draw_rows(encoder, 500)
    assert json.loads(json.dumps(rows)) == rows == draw_rows(encoder, 500)
    encoded = encoder.encode_rows(rows)
    assert isinstance(encoded, EncodedRows) and {0, 1, 2} <= set(encoded.categorical[:, 0].tolist())
    assert any(row["age"] is None for row in rows) and all(isinstance(row["tags"], list) for row in rows)
    assert Bag(*encoded.bags[0]).offsets[-1] > 500


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_compiler
@pytest.mark.slow
def test_a_compiled_bundle_answers_as_its_run_on_this_processor_alone(make_run, tmp_path, monkeypatch) -> None:
    run = make_run()
    path = export(run, tmp_path / "bundle", format="pt2").path
    assert {"model.pt2", "manifest.json", "rows.json"} <= {one.name for one in path.iterdir()}
    assert not (path / "model.onnx").exists()
    with pytest.raises(BundleError, match=r"holds code that would run.*allow_code=True"):
        Scorer.open(path)
    scorer, frame = Scorer.open(path, allow_code=True), table(3000, seed=5)
    np.testing.assert_allclose(scorer.score(frame), run.predict(frame), atol=1e-6)
    for count in (0, 1, 2, 7):
        rows = frame.head(count).to_dicts()
        np.testing.assert_allclose(scorer.score(rows), run.predict(rows), atol=1e-6)
    np.testing.assert_allclose(scorer.score(STRANGE), run.predict(STRANGE), atol=1e-6)
    monkeypatch.setattr(compiled, "processor", lambda: "another")
    with pytest.raises(BundleError, match=r"on a processor like the one it was compiled on.* --format onnx"):
        Scorer.open(path, allow_code=True)


def test_without_a_compiler_a_compiled_export_says_what_to_install(make_run, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BundleError, match=r"needs a C\+\+ compiler; got no 'no-such-compiler'.* Install g\+\+"):
        export(make_run(), tmp_path / "bundle", format="pt2")
    assert not (tmp_path / "bundle").exists()


@needs_compiler
def test_a_model_that_cannot_be_compiled_is_told_in_a_line(make_run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.export, "export", lambda *given, **more: 1 / 0)
    with pytest.raises(BundleError, match=r"must be one that torch can compile; got: division by zero"):
        export(make_run(), tmp_path / "bundle", format="pt2")
    assert not (tmp_path / "bundle").exists()
