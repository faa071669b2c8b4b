"""From a run to a bundle: the model as an ONNX graph, or compiled, accepted only where it answers as the run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from crossrank import __version__
from crossrank.errors import BundleError, ConfigError, listing, needed, quietly
from crossrank.files import write_json
from crossrank.folders import check_replaceable, making, publish, recover
from crossrank.models import Model
from crossrank.models.base import answers_of
from crossrank.nn import Bag, Features
from crossrank.runs import Run
from crossrank.schema import LabelKind
from crossrank.serving.bundle import COMPILED, GRAPH, ROWS, Bundle, is_bundle, write_manifest
from crossrank.serving.compiled import compiled_answers, processor, write_compiled
from crossrank.serving.made_up_rows import draw_rows
from crossrank.serving.packed_tables import Precision, packed
from crossrank.serving.parity import check_parity, measure_parity, parity_rows
from crossrank.serving.scorer import WARM_UP_ROWS, onnx_answers

Format = Literal["onnx", "pt2"]


def export(
    run: Run | Path | str,
    into: Path | str,
    *,
    format: Format = "onnx",  # noqa: A002
    precision: Precision = "float32",
    data: Any = None,
    overwrite: bool = False,
) -> Bundle:
    """Write a run as a bundle, which :class:`~crossrank.serving.scorer.Scorer` opens, as ONNX without torch.

    The graph takes any number of rows. It is run beside the model on the same rows first; where the answers differ by
    more than the bounds of :mod:`crossrank.serving.parity` allow, nothing is written.

    Args:
        run: the trained model, or its folder.
        into: the folder to make.
        format: onnx, or pt2 for a model that torch compiles for this machine's processor and no other
            (:mod:`crossrank.serving.compiled`); it is opened with torch, and holds code, which has to be allowed.
        precision: of the embedding tables, mostly nearly all there is: float32, bfloat16 (half the room) or int8 with a
            scale for each row (about a quarter). All else is float32.
        data: rows to compare on, with labels: an encoded dataset, of which the validation rows are taken, or a table;
            left out, rows are drawn from what the encoder knows.
        overwrite: replace an older bundle.

    Raises:
        BundleError: where the folder is in the way, the answers differ, or, for pt2, there is no compiler.
        MissingExtraError: where onnx is not installed.
    """
    for name, value, known in (("format", format, Format), ("precision", precision, Precision)):
        if value not in get_args(known):
            raise ConfigError(f"{name} must be one of {listing(get_args(known))}; got {value!r}.")
    into, run = Path(into), run if isinstance(run, Run) else Run.open(run)
    recover(into)
    check_replaceable(into, "bundle", BundleError, overwrite=overwrite, is_one=is_bundle)
    rows = parity_rows(run, data)
    with making(into, BundleError) as folder:
        model, about = _Answers(packed(run.model, precision), run.schema.label.kind).eval(), {}
        if format == "onnx":
            write_graph(model, folder / GRAPH)
            answers = onnx_answers(folder / GRAPH, threads=1)
        else:
            inputs, sizes = _example(model.model)
            with torch.no_grad(), quietly():
                write_compiled(model, tuple(inputs.values()), sizes, folder / COMPILED)
            answers, about = compiled_answers(folder / COMPILED), {"processor": processor()}
        parity = measure_parity(run, answers, rows)
        check_parity(parity, precision)
        run.schema.save(folder / "schema.json")
        run.encoder.save(folder / "encoder")
        write_json(folder / ROWS, draw_rows(run.encoder, WARM_UP_ROWS))
        about |= {"library_version": __version__, "run": run.fingerprint, "model": run.config["model"]["name"]}
        write_manifest(folder, {**about, "precision": precision, "parity": parity})
        publish(folder, into)
    return Bundle.open(into, verify=False)


class _Answers(nn.Module):
    """From features to probabilities or numbers."""

    def __init__(self, model: Model, kind: LabelKind) -> None:
        super().__init__()
        self.model, self._kind = model, kind

    def forward(self, *inputs: Tensor) -> Tensor:
        categorical, numeric, *bags = inputs
        pairs = zip(bags[::2], bags[1::2], strict=True)
        features = Features(categorical, numeric, tuple(Bag(ids, offsets) for ids, offsets in pairs))
        return answers_of(self.model.bounded_logits(features), self._kind)


def write_graph(answers: _Answers, path: Path) -> None:
    """Write a model as ONNX, its weights in a file beside it, so that tables may be larger than the format's 2 GB."""
    needed("onnxscript", "Exporting to ONNX", "export")
    inputs, sizes = _example(answers.model)
    with torch.no_grad(), quietly():
        try:
            program: Any = torch.onnx.export(
                answers,
                tuple(inputs.values()),
                dynamo=True,
                dynamic_shapes=(sizes,),
                input_names=[*inputs],
                output_names=["answers"],
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            cause = str(error.__cause__ or error).strip().splitlines()[0]
            raise BundleError(
                f"The model must be one that torch can export to ONNX; got: {cause}",
                hint="In a model of your own, forward may not look at values (.item(), if x.any()).",
            ) from error
        _forget_origin(program.model)
        program.save(path, external_data=True)


def _forget_origin(graph: Any) -> None:
    """Without notes on which line of which file each node came from, most of the graph's bytes."""
    for node in graph.graph.all_nodes():
        for noted in (node, *node.outputs):
            noted.metadata_props.clear()
    for noted in (graph, graph.graph, *graph.graph.inputs, *graph.graph.initializers.values()):
        noted.metadata_props.clear()


def _example(model: Model) -> tuple[dict[str, Tensor], tuple[Any, ...]]:
    """The inputs of a graph by name, some rows of them, and which of their sizes may be others."""
    layout, count, rows = model.layout, 7, torch.export.Dim("rows")
    inputs = {
        "categorical": _zeros(count, len(layout.of_kind("categorical"))),
        "numeric": torch.zeros(count, layout.num_numbers),
    }
    sizes: list[Any] = [{0: rows}, {0: rows}]
    for place in range(len(layout.of_kind("multivalent"))):
        ids = 17 + place  # no two sizes are alike, or they would be taken for one
        inputs |= {f"bag_{place}_ids": _zeros(ids), f"bag_{place}_offsets": torch.arange(count + 1)}
        sizes += [{0: torch.export.Dim(f"ids_{place}")}, {0: rows + 1}]
    return inputs, tuple(sizes)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)
