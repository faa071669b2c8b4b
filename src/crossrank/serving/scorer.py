"""Raw rows in, answers out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.any_rows import encode_any
from crossrank.data.encoder import Encoder
from crossrank.data.rows import EncodedRows
from crossrank.errors import BundleError, needed
from crossrank.folders import recover
from crossrank.schema import Feature, Label, Schema
from crossrank.serving.bundle import EXPORT_AGAIN, Bundle, is_bundle, is_compiled
from crossrank.serving.made_up_rows import draw_rows

if TYPE_CHECKING:
    from crossrank.runs import Run

Answers: TypeAlias = NDArray[np.float32]
WARM_UP_ROWS = 8


class Scorer:
    """Answers for raw rows, from a run folder by torch or from a bundle by onnxruntime; safe to share among threads.

    Open one with :meth:`open`. From a bundle it needs neither torch nor, for rows given as dictionaries, polars; only a
    bundle that is compiled runs by torch.

    Attributes:
        encoder: turns raw rows into ids and numbers.
        version: the fingerprint of the run.
        precision: of the weights: float32, bfloat16 or int8.
        warm_up_rows: a few raw rows.

    Example::

        scorer = Scorer.open("bundles/first")
        scorer.score({"user": "u7", "country": "pt", "hour": 9})     # array([0.083], dtype=float32)
    """

    def __init__(
        self,
        encoder: Encoder,
        answers: Callable[[EncodedRows], Answers],
        *,
        version: str,
        precision: str,
        warm_up_rows: list[dict[str, Any]],
    ) -> None:
        self.encoder, self._answers = encoder, answers
        self.version, self.precision, self.warm_up_rows = version, precision, warm_up_rows

    @classmethod
    def open(
        cls, source: Run | Path | str, *, threads: int = 1, verify: bool = True, allow_code: bool = False
    ) -> Scorer:
        """Open a run or a bundle, and answer a few rows so that the next ones need not wait.

        Args:
            source: a run, its folder, or the folder of a bundle.
            threads: of one call of onnxruntime; calls of several threads run side by side. Torch has its own setting.
            verify: compare the checksum of every file with the one that was written.
            allow_code: open a bundle that is compiled too. It holds code, which runs: only for one that you made.

        Raises:
            BundleError, RunError: where the folder is neither, damaged, or compiled, for another processor or without
                leave.
            MissingExtraError: for a bundle where onnxruntime is not installed.
        """
        if isinstance(source, Path | str):
            recover(Path(source))
        if isinstance(source, Path | str) and is_bundle(Path(source)):
            bundle = Bundle.open(source, verify=verify)
            parts: dict[str, Any] = {"version": bundle.fingerprint, "precision": bundle.precision}
            if is_compiled(bundle.path):
                from crossrank.serving.compiled import open_compiled  # which needs torch

                answers = open_compiled(bundle, allowed=allow_code)
            else:
                answers = bundle.read_graph(lambda graph: onnx_answers(graph, threads))
            scorer = cls(bundle.encoder, answers, **parts, warm_up_rows=bundle.rows)
        else:
            from crossrank.runs import Run  # which needs torch

            run = Run.open(source, verify=verify) if isinstance(source, Path | str) else source
            rows = draw_rows(run.encoder, WARM_UP_ROWS)
            parts = {"version": run.fingerprint, "precision": "float32", "warm_up_rows": rows}
            scorer = cls(run.encoder, lambda rows: run.answers([rows.features()]), **parts)
        scorer.score(scorer.warm_up_rows)
        return scorer

    @property
    def schema(self) -> Schema:
        return self.encoder.schema

    @property
    def label(self) -> Label:
        return self.schema.label

    @property
    def features(self) -> tuple[Feature, ...]:
        """What the model sees of a row."""
        return self.encoder.features

    def score(self, rows: Any, **table_options: Any) -> Answers:
        """The probability of each row, or its predicted value where the label is a number: (N,).

        For several classes or tasks, the probability of each, in the order of ``label.classes`` or ``label.columns``:
        (N, K).

        Args:
            rows: one dictionary or a list of them, a polars or pandas data frame, an Arrow table, or a path to tables.
            table_options: what :func:`crossrank.data.open_table` takes.

        Raises:
            SchemaError: for a column that is missing; a missing value is None.
            DataError: for a number that cannot be read.
        """
        found = [self.answers(part) for part in encode_any(self.encoder, rows, **table_options)]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else self._nothing()

    def answers(self, rows: EncodedRows) -> Answers:
        """The same of rows that are encoded, at most some thousand."""
        return self._answers(rows) if len(rows) else self._nothing()

    def _nothing(self) -> Answers:
        return np.empty((0, self.label.num_outputs) if self.label.num_outputs > 1 else 0, np.float32)

    def __repr__(self) -> str:
        return f"Scorer(version={self.version!r}, precision={self.precision!r})"


def onnx_answers(graph: Path, threads: int) -> Callable[[EncodedRows], Answers]:
    """A function that runs an exported graph."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would write files
    onnxruntime = needed("onnxruntime", "Scoring a bundle", "export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3  # errors only
    try:
        providers = ["CPUExecutionProvider"]  # without another try, which would be told on standard output
        session = onnxruntime.InferenceSession(graph, options, providers=providers, enable_fallback=False)
    except Exception as error:  # of many kinds, none of them public
        raise BundleError(f"{graph} must be a graph that onnxruntime runs; {error}", hint=EXPORT_AGAIN) from None
    names = {node.name for node in session.get_inputs()}

    def answers(rows: EncodedRows) -> Answers:
        given = {name: array for name, array in graph_inputs(rows).items() if name in names}
        found: Answers = session.run(None, given)[0]
        return found

    return answers


def graph_inputs(rows: EncodedRows) -> dict[str, NDArray[Any]]:
    """Encoded rows under the names that an exported graph gives its inputs, in its order."""
    inputs: dict[str, NDArray[Any]] = {"categorical": rows.categorical.view(np.int32), "numeric": rows.numeric}
    for place, (ids, offsets) in enumerate(rows.bags):
        inputs |= {f"bag_{place}_ids": ids.view(np.int32), f"bag_{place}_offsets": offsets}
    return inputs
