"""What stands in the JSON files of a run, as they are checked when they are read; each may hold more."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from crossrank.shapes import FileName


class Metrics(TypedDict):
    """Of the rows of a split."""

    rows: int
    __extra_items__: NotRequired[int | float | None]


class Info(TypedDict):
    """run.json"""

    format_version: int
    checksums: dict[FileName, str]
    records: NotRequired[dict[FileName, str]]
    seed: int
    data_fingerprint: str
    library_version: str
    finished: str
    rows: NotRequired[dict[str, int]]
    command: NotRequired[list[str]]
    machine: NotRequired[dict[str, str]]


class Model(TypedDict):
    name: str


class Settings(TypedDict):
    """config.json; the class of the settings says what else each part has."""

    model: Model
    training: dict[str, Any]
    split: dict[str, Any]


class Plan(TypedDict):
    """plan.json, of an unfinished training"""

    config: dict[str, Any]
    seed: int
    data_fingerprint: str


class Training(TypedDict):
    best_step: int
    seconds: float
    steps: int
    still_improving: NotRequired[bool]
    warning: NotRequired[str]


class Side(TypedDict):
    """A model before or after it was compressed."""

    parameters: int
    multiply_adds: int
    milliseconds: dict[str, float]
    valid: NotRequired[Metrics]
    test: NotRequired[Metrics]


class Compression(TypedDict):
    source: str
    rank: int
    before: Side
    after: Side


class Tried(TypedDict):
    columns: list[str]
    expected: float
    gain: float
    error: float
    pays: bool


class Memory(TypedDict):
    of: list[list[str]]
    gain: float
    error: float
    pays: bool


class Promotion(TypedDict):
    source: str
    seeds: int
    tried: list[Tried]


class Report(TypedDict):
    """report.json"""

    valid: NotRequired[Metrics]
    test: NotRequired[Metrics]
    training: Training
    parameters: dict[str, int]
    compression: NotRequired[Compression]
    promotion: NotRequired[Promotion]
    memory: NotRequired[list[Memory]]


class Strength(TypedDict):
    strength: float
    norm: float
    layer: int
    network: int
    strengths: NotRequired[list[float]]
    norms: NotRequired[list[float]]


class Pair(Strength):
    left: str
    right: str


class Features(Strength):
    features: list[str]


class Crosses(TypedDict):
    """crosses.json"""

    pairs: list[Pair | Features]
    unexplained: NotRequired[list[str]]


class Layer(TypedDict):
    network: int
    layer: int
    values: list[float]
    used: list[float]
    initial: NotRequired[list[float]]


class Spectra(TypedDict):
    """spectrum.json"""

    layers: list[Layer]


class Group(TypedDict):
    value: str
    rows: int


class Curves(TypedDict):
    """curves.json; what is drawn by a page's script is not looked into."""

    split: str
    kind: Literal["binary", "real"]
    rows: int
    groups: dict[str, list[Group]]
    intervals: NotRequired[dict[str, list[float | None]]]


class Worth(TypedDict):
    feature: str
    importance: float
    deviation: float


class Importance(TypedDict):
    """importance.json"""

    split: str
    metric: str
    rows: int
    repeats: int
    base: float
    features: list[Worth]
    dependence: list[dict[str, Any]]


class Calibration(TypedDict):
    """calibration.json"""

    scores: list[float]
    answers: list[float]


class Line(TypedDict):
    """A line of metrics.jsonl."""

    step: int
    epoch: int
    loss: NotRequired[float]
    valid: NotRequired[Metrics]
    valid_raw: NotRequired[Metrics]
    member: NotRequired[int]
