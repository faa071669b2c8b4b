"""From a run to a bundle: the model as an ONNX graph, accepted only where it answers as the run does."""

from __future__ import annotations

import contextlib
import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from crossrank import __version__
from crossrank.errors import BundleError, ConfigError, MissingExtraError, listing
from crossrank.files import fresh_partial, publish, write_json, writing
from crossrank.models import Model
from crossrank.models.base import answers_of
from crossrank.nn import Bag, Features
from crossrank.runs import Run
from crossrank.schema import LabelKind
from crossrank.serving.bundle import GRAPH, ROWS, Bundle, is_bundle, write_manifest
from crossrank.serving.packing import Precision, packed
from crossrank.serving.parity import check_parity, measure_parity, parity_rows
from crossrank.serving.rows import draw_rows
from crossrank.serving.scorer import WARM_UP_ROWS, onnx_answers

Format = Literal["onnx"]


def export(
    run: Run | Path | str,
    into: Path | str,
    *,
    format: Format = "onnx",  # noqa: A002
    precision: Precision = "float32",
    data: Any = None,
    overwrite: bool = False,
) -> Bundle:
    """Write a run as a bundle, which :class:`~crossrank.serving.scorer.Scorer` opens without torch.

    The graph takes any number of rows. It is run beside the model on the same rows first; where the answers differ by
    more than the bounds of :mod:`crossrank.serving.parity` allow, nothing is written.

    Args:
        run: the trained model, or its folder.
        into: the folder to make.
        format: onnx.
        precision: of the embedding tables, mostly nearly all there is: float32, bfloat16 (half the room) or int8 with a
            scale for each row (about a quarter). All else is float32.
        data: rows to compare on, with labels: an encoded dataset, of which the validation rows are taken, or a table;
            left out, rows are drawn from what the encoder knows.
        overwrite: replace an older bundle.

    Raises:
        BundleError: where the folder is in the way, or the answers differ.
        MissingExtraError: where onnx is not installed.
    """
    for name, value, known in (("format", format, Format), ("precision", precision, Precision)):
        if value not in get_args(known):
            raise ConfigError(f"{name} must be one of {listing(get_args(known))}; got {value!r}.")
    into, run = Path(into), run if isinstance(run, Run) else Run.open(run)
    _check_place(into, overwrite)
    rows = parity_rows(run, data)
    with writing(into, BundleError):
        folder = fresh_partial(into)
        try:
            write_graph(packed(run.model, precision), run.schema.label.kind, folder / GRAPH)
            parity = measure_parity(run, onnx_answers(folder / GRAPH, threads=1), rows)
            check_parity(parity, precision)
            run.schema.save(folder / "schema.json")
            run.encoder.save(folder / "encoder")
            write_json(folder / ROWS, draw_rows(run.encoder, WARM_UP_ROWS))
            about = {"library_version": __version__, "run": run.fingerprint, "model": run.config["model"]["name"]}
            write_manifest(folder, {**about, "precision": precision, "parity": parity})
            publish(folder, into)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return Bundle.open(into, verify=False)


def _check_place(into: Path, overwrite: bool) -> None:
    if into.exists() and not overwrite:
        raise BundleError(
            f"The bundle {into} must not exist yet; it does.", hint="Choose another name, or overwrite it."
        )
    if into.exists() and not is_bundle(into):
        raise BundleError(f"{into} is not a bundle, so it will not be replaced.", hint="Choose another name.")


class _Answers(nn.Module):
    """From features to probabilities or numbers."""

    def __init__(self, model: Model, kind: LabelKind) -> None:
        super().__init__()
        self.model, self._kind = model, kind

    def forward(self, features: Features) -> Tensor:
        return answers_of(self.model.bounded_logits(features), self._kind)


def write_graph(model: Model, kind: LabelKind, path: Path) -> None:
    """Write a model as ONNX, its weights in a file beside it, so that tables may be larger than the format's 2 GB."""
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtraError("Exporting to ONNX", "export") from None
    features, shapes, names = _example(model)
    with torch.no_grad(), _quiet():
        program: Any = torch.onnx.export(
            _Answers(model, kind).eval(),
            (features,),
            dynamo=True,
            dynamic_shapes=(shapes,),
            input_names=names,
            output_names=["answers"],
            verbose=False,
        )
        _forget_origin(program.model)
        program.save(path, external_data=True)


def _forget_origin(graph: Any) -> None:
    """Without notes on which line of which file each node came from, most of the graph's bytes."""
    for node in graph.graph.all_nodes():
        for noted in (node, *node.outputs):
            noted.metadata_props.clear()
    for noted in (graph, graph.graph, *graph.graph.inputs, *graph.graph.initializers.values()):
        noted.metadata_props.clear()


def _example(model: Model) -> tuple[Features, Features, list[str]]:
    """Some rows, of which sizes each input may have others, and the inputs' names."""
    layout, rows = model.layout, 7
    num_bags, num_rows = len(layout.of_kind("multivalent")), torch.export.Dim("rows")
    # No two sizes are alike, or they would be taken for one.
    bags = [Bag(_zeros(17 + k), torch.arange(rows + 1)) for k in range(num_bags)]
    single = _zeros(rows, len(layout.of_kind("categorical")))
    features = Features(single, torch.zeros(rows, layout.num_numbers), tuple(bags))
    sizes: Any = [Bag({0: torch.export.Dim(f"ids_{k}")}, {0: num_rows + 1}) for k in range(num_bags)]  # type: ignore[arg-type]
    shapes: Any = Features({0: num_rows}, {0: num_rows}, tuple(sizes))  # type: ignore[arg-type]
    names = [name for k in range(num_bags) for name in (f"bag_{k}_ids", f"bag_{k}_offsets")]
    return features, shapes, ["categorical", "numeric", *names]


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter tells its developers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
