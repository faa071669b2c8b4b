"""The run folder: the only thing that is ever saved of a trained model.

::

    runs/first/
      run.json            format version, library version, command, seed, rows, fingerprints, checksums of all below
      config.json         every setting after defaults
      schema.json         what each column means
      encoder/            turns a raw row into ids and numbers exactly as training did
      model.safetensors   the weights
      metrics.jsonl       one line for each log and each evaluation of the training
      report.json         the final metrics and the cost
      crosses.json        the strength of each pair of features, where the model has cross layers
      spectrum.json       the singular values of each cross layer, initial and learned
      curves.json         calibration, ROC and score distribution on the test rows, intervals of the metrics
      importance.json     what each feature is worth, and how the answer moves with the values of the first
      report.html         a page that a person reads, made by `crossrank report`
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load_file

from crossrank.data import Encoder
from crossrank.data.any_rows import encode_any
from crossrank.errors import ConfigError, RunError
from crossrank.files import Contents, is_as_written, read_json, read_json_lines, stamp
from crossrank.folders import partial_of, recover
from crossrank.models import Model, build_model, parse_model_settings
from crossrank.models.base import answers_of
from crossrank.models.settings import ModelSettings
from crossrank.nn import Features
from crossrank.results import Cross, Spectrum
from crossrank.runs import written
from crossrank.runs.lifecycle import is_run
from crossrank.schema import Schema

FORMAT_VERSION = 1
WEIGHTS = "model.safetensors"
CALIBRATION = "calibration.json"
DAMAGED = "Copy it anew or train again."


class Run:
    """A trained model with everything that is needed to use it again.

    Open one with :meth:`open`; training makes them.

    Attributes:
        path: the folder.
        info: the content of run.json.
        config: the content of config.json.

    Example::

        run = Run.open("runs/first")
        run.predict([{"user": "u7", "country": "pt", "hour": 9}])     # array([0.083])
    """

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path, self.info = path, info
        checksums = {**info["checksums"], **info.get("records", {})}
        self._files = Contents(path, checksums, RunError, hint=DAMAGED)

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> Run:
        """Open a finished run.

        Args:
            path: the run folder.
            verify: compare the checksum of every file with the one written at the end of training.

        Raises:
            RunError: where the folder is absent, unfinished, damaged or from another format version.
        """
        path = Path(path)
        recover(path)
        if not is_run(path):
            raise RunError(f"{path} must be a run folder; it has no run.json.", hint=_instead(path))
        opened = stamp(path / "run.json")
        version = read_json(path / "run.json", dict[str, Any]).get("format_version")
        if version != FORMAT_VERSION:
            raise RunError(
                f"{path} must have run format {FORMAT_VERSION}; got {version!r}.",
                hint="It was written by a newer crossrank: upgrade, or train again.",
            )
        run = cls(path, read_json(path / "run.json", written.Info))
        try:
            if verify:
                run.verify()
        except RunError:
            if stamp(path / "run.json") == opened:
                raise
        same = stamp(path / "run.json") == opened
        return run if same else cls.open(path, verify=verify)  # another run took its place meanwhile

    def verify(self) -> None:
        """Check that no file of the run was damaged since it was written."""
        if not is_as_written(self.info):
            raise RunError(f"{self.path} is damaged: run.json is not what was written.", hint=DAMAGED)
        self._files.verify()

    @property
    def fingerprint(self) -> str:
        """Equal for runs with the same encoder, settings and weights."""
        checksums = sorted(self.info["checksums"].items())
        return hashlib.blake2b(json.dumps(checksums).encode(), digest_size=8).hexdigest()

    @cached_property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self._files.read_json("config.json", written.Settings)
        return config

    @cached_property
    def encoder(self) -> Encoder:
        return self._files.read("encoder", Encoder.load)

    @property
    def schema(self) -> Schema:
        return self.encoder.schema

    @cached_property
    def model_settings(self) -> ModelSettings:
        """The ``model`` part of the config."""
        try:
            return parse_model_settings(self.config["model"])
        except ConfigError as error:
            raise RunError(f"{self.path / 'config.json'} cannot be used: {error.message}", hint=error.hint) from None

    @cached_property
    def model(self) -> Model:
        """The trained model, in evaluation mode, on the CPU."""
        outputs = self.schema.label.num_outputs
        model = build_model(self.model_settings, self.encoder.features, num_outputs=outputs)
        try:
            model.load_state_dict(self._files.read(WEIGHTS, load_file))
        except (SafetensorError, RuntimeError, OSError) as error:
            raise RunError(f"{self.path / WEIGHTS} must hold the weights of this model; {error}.") from None
        return model.eval()

    @property
    def report(self) -> dict[str, Any]:
        """The final metrics by split, and what the model costs."""
        report: dict[str, Any] = self._files.read_json("report.json", written.Report)
        return report

    @property
    def crosses(self) -> list[Cross]:
        """The strength of each pair of features; empty for a model without cross layers."""
        return [Cross.from_dict(pair) for pair in self.optional("crosses.json", written.Crosses).get("pairs", [])]

    @property
    def unexplained(self) -> list[str]:
        """Sentences about cross layers whose crosses cannot be told; mostly there are none."""
        return list(self.optional("crosses.json", written.Crosses).get("unexplained", []))

    @property
    def curves(self) -> dict[str, Any]:
        """What a report draws of the answers to the test rows, and intervals of their metrics; empty without any."""
        return self.optional("curves.json", written.Curves)

    @property
    def importance(self) -> list[dict[str, Any]]:
        """How much the criterion rises when a feature is shuffled, strongest first; empty for a run that lacks it."""
        return list(self.found_importance.get("features", []))

    @property
    def found_importance(self) -> dict[str, Any]:
        """The same with what it was measured on, and how answers move with values; empty for a run that lacks it."""
        return self.optional("importance.json", written.Importance)

    @property
    def spectrum(self) -> list[Spectrum]:
        """The singular values of each cross layer; empty for a model without cross layers."""
        return [
            Spectrum.from_dict(layer) for layer in self.optional("spectrum.json", written.Spectra).get("layers", [])
        ]

    def optional(self, name: str, shape: Any) -> dict[str, Any]:
        """The content of a JSON file that not every run has; empty where it has none."""
        known = self.info.get("records")  # older runs do not list them
        there = (self.path / name).is_file() if known is None else name in known
        return dict(self._files.read_json(name, shape)) if there else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return self._files.read("metrics.jsonl", lambda file: read_json_lines(file, written.Line))

    def encode(self, source: Any, **table_options: Any) -> Iterator[Features]:
        """Raw rows as batches of features: one dictionary or a list of them, a data frame, or a path to tables."""
        for rows in encode_any(self.encoder, source, **table_options):
            yield rows.features()

    def predict(self, source: Any, *, calibrated: bool = False, **table_options: Any) -> npt.NDArray[np.float32]:
        """The probability of each raw row, or its predicted value where the label is a number.

        For several classes or tasks, the probability of each, in the order of ``schema.label.classes`` or ``columns``:
        (N, K).

        Columns may come in any order, others may stand between them; unseen and missing values are fine, a missing
        column is not.

        Args:
            source: raw rows, as :meth:`encode` takes them.
            calibrated: of a run whose loss was one of the order, the mean label that validation rows of such a score
                had: a probability, or a grade.
        """
        answers = self.answers(self.encode(source, **table_options))
        return self.calibrated(answers) if calibrated else answers

    def calibrated(self, answers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What answers mean that are only an order: a monotone map of them, fitted on the validation rows.

        Raises:
            RunError: for a run that has none, since its answers are probabilities or numbers already.
        """
        known = self.optional(CALIBRATION, written.Calibration)
        if not known.get("scores"):
            raise RunError(
                f"Answers are calibrated of a run whose training.loss is one of the order; {self.path} has no "
                f"{CALIBRATION}.",
                hint="Its answers are probabilities or numbers as they are.",
            )
        means: npt.NDArray[np.float32] = np.interp(answers, known["scores"], known["answers"]).astype(np.float32)
        return means

    def answers(self, batches: Iterable[Features]) -> npt.NDArray[np.float32]:
        """The same of rows that are encoded."""
        answers: npt.NDArray[np.float32] = answers_of(
            self.model.predict_logits(batches), self.schema.label.kind
        ).numpy()
        return answers

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, model={self.config['model']['name']!r})"


def _instead(path: Path) -> str:
    """What to do where a folder is no run."""
    if is_run(path / "seed-0"):
        return f"It has a run for each seed; name one of them: {path / 'seed-0'}"
    if partial_of(path).is_dir():
        return "Its training did not finish: train again with --resume."
    return "Check the path." if not path.is_dir() else "Runs are made by: crossrank train"
