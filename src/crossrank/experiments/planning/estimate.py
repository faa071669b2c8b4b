"""Memory of a device and the parts of a step.

With N devices, a global batch of B rows, b = B / N of them on each; P dense weights; parts of tables as they are placed
(:class:`~crossrank.experiments.planning.placing.Part`), of which a device d holds those of widths w::

    compute      3 · b · flops / products  +  b · activations / stream         forward 1, backward 2
    memory       Σ_parts (lookups · l(w) + distinct · u(w)) / row_stream       bytes: row_traffic, and copies
                 + 36 (P + data-parallel weights) / stream                     Adam, average: 5 numbers read, 4 written
    all-to-all   (ids + 2 · 4 (B - b) Σ w) / link                              vectors there, gradients back
    all-reduce   2 (N - 1) / N · 4 (P + data-parallel weights) / link          as one exchange, with clip and loss
    overhead     what a step takes however few rows it has

The slowest device counts in each part, and the parts are added: nothing is assumed to overlap.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from crossrank.errors import ConfigError
from crossrank.experiments.planning.cluster import Cluster
from crossrank.experiments.planning.placing import EVENLY, Part, place
from crossrank.experiments.planning.workload import FLOAT, Workload, row_bytes, row_traffic
from crossrank.training.device import uses_bfloat16
from crossrank.training.lazy import num_parts

ID, LENGTH = 8, 4  # bytes: of an id and of a count that TorchRec sends
COPIES = 12  # of vectors around an exchange: joined, packed and unpacked, read and written, forward and backward
EXCHANGES = 5  # all-to-alls of a step for a kind of placement: sizes, counts, ids, vectors, gradients
DRAWING = 5e-9  # seconds for each first weight, measured (docs/guides/many-machines.md)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on the device that needs most."""

    tables: float  # rows with their optimiser state, and the best ones so far
    dense: float  # the same of all other weights, and their gradient
    working: float  # activations, vectors that are exchanged, rows that are updated
    checkpoint: float  # copies while one is written

    @property
    def total(self) -> float:
        return self.tables + self.dense + max(self.working, self.checkpoint)


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds."""

    compute: float
    memory: float
    all_to_all: float
    all_reduce: float
    overhead: float

    @property
    def total(self) -> float:
        return self.compute + self.memory + self.all_to_all + self.all_reduce + self.overhead


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a training takes on a cluster."""

    workload: Workload
    cluster: Cluster
    batch_size: int
    parts: Sequence[Part]
    memory: Memory
    step: StepTime

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.cluster.device_memory

    @property
    def rows_per_second(self) -> float:
        return self.batch_size / self.step.total

    @property
    def epoch_seconds(self) -> float:
        return math.ceil(self.workload.rows / self.batch_size) * self.step.total

    @property
    def setup_seconds(self) -> float:
        """Every process draws all first weights, so that they do not depend on the number of processes."""
        return DRAWING * self.weights * self.cluster.crowding

    @property
    def weights(self) -> int:
        """Of all tables."""
        return sum(table.rows * table.width for table in self.workload.tables)

    @property
    def machine_disk(self) -> float:
        """Bytes in TMPDIR of a machine: each process maps a file as large as all tables."""
        return FLOAT * self.weights * self.cluster.per_machine

    @property
    def dataset_bytes(self) -> int:
        """Of the prepared rows, on disk: an id or a number for each feature, and a label."""
        layout = self.workload.model.layout
        return FLOAT * self.workload.rows * (len(layout.embedded) + layout.num_numbers + 1)

    @property
    def cost(self) -> float | None:
        """Of an epoch."""
        price = self.cluster.price
        return None if price is None else self.cluster.machines * price * self.epoch_seconds / 3600

    @property
    def placed(self) -> bool:
        """Whether TorchRec placed the tables; with one device there is nothing to place."""
        return all(part.placement != EVENLY for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it: bytes, seconds."""
        cluster = self.cluster
        return {
            "rows": self.workload.rows,
            "embedding_rows": sum(table.rows for table in self.workload.tables),
            "embedding_weights": self.weights,
            "dense_weights": self.workload.dense,
            "flops_per_row": self.workload.flops,
            "batch_size": self.batch_size,
            "machines": cluster.machines,
            "devices_per_machine": cluster.per_machine,
            "device": cluster.device.about,
            "interconnect": cluster.link.about if cluster.link else None,
            "memory_bytes": {**dataclasses.asdict(self.memory), "total": self.memory.total},
            "device_memory_bytes": cluster.device_memory,
            "fits": self.fits,
            "dataset_bytes": self.dataset_bytes,
            "machine_disk_bytes": self.machine_disk,
            "placed_by_torchrec": self.placed,
            "placement": placements(self.parts),
            "step_seconds": {**dataclasses.asdict(self.step), "total": self.step.total},
            "rows_per_second": self.rows_per_second,
            "setup_seconds": self.setup_seconds,
            "epoch_seconds": self.epoch_seconds,
            "epoch_cost": self.cost,
        }


def placements(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Each table: its feature, its size, how it is placed and on which devices."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        table = part.table
        about = {"feature": table.feature, "rows": table.rows, "width": table.width, "placement": part.placement}
        found.setdefault(table.name, {**about, "devices": []})["devices"].append(part.device)
    return list(found.values())


def make_plan(workload: Workload, cluster: Cluster, parts: Sequence[Part] | None = None) -> Plan:
    """Place the tables, and add up what each device holds and does.

    Args:
        workload: what is trained.
        cluster: on which devices.
        parts: of the tables; left out, those of :func:`~crossrank.experiments.planning.placing.place`.

    Raises:
        ConfigError: for a batch that the devices cannot share, or tables that no placement fits into their memory.
    """
    batch_size, count = workload.config.training.batch_size, cluster.num_devices
    if batch_size % count:
        raise ConfigError(
            f"training.batch_size must be a multiple of the number of devices, {count}; got {batch_size:,}.",
            hint=f"Give --set training.batch_size={-(-batch_size // count) * count}",
        )
    parts = place(workload, cluster, batch_size) if parts is None else parts
    step = _Step(workload, cluster, batch_size, parts)
    return Plan(workload, cluster, batch_size, parts, step.memory(), step.time())


class _Step:
    def __init__(self, workload: Workload, cluster: Cluster, batch_size: int, parts: Sequence[Part]) -> None:
        self.workload, self.cluster, self.device, self.batch = workload, cluster, cluster.device, batch_size
        self.share, self.training = batch_size // cluster.num_devices, workload.config.training
        self.decay = self.training.average_decay
        self.held: list[list[Part]] = [[] for _ in range(cluster.num_devices)]
        for part in parts:
            self.held[part.device].append(part)
        self.distinct = {part.table.name: part.table.distinct(batch_size) for part in parts}
        replicated = {part.table.name: part.table for part in parts if part.replicated}
        self.replicated = sum(table.rows * table.width for table in replicated.values())
        self.sent = sum(part.sent for part in parts)
        self.ids = sum(self._id_bytes(part) for part in parts)

    def _id_bytes(self, part: Part) -> float:
        """What a row of a batch sends to a part."""
        return 0.0 if part.replicated else ID * part.lookups + LENGTH

    def _touched(self, part: Part) -> float:
        return self.distinct[part.table.name] * part.lookups

    def memory(self) -> Memory:
        parts, average = num_parts(self.decay), bool(self.decay)
        dense = FLOAT * (5 + average)  # weight, gradient, m, v, average, best
        copies = FLOAT * parts
        of_each = []
        for held in self.held:
            sharded = [part for part in held if not part.replicated]
            rows = sum(part.rows * row_bytes(part.width, self.decay, self.device.kind) for part in sharded)
            touched = sum(self._touched(part) * FLOAT * part.width * (1 + parts) for part in sharded)
            vectors = 2 * FLOAT * (self.batch * sum(part.sent for part in sharded) + self.share * self.sent)
            of_each.append(
                Memory(
                    tables=rows + dense * self.replicated,
                    dense=dense * self.workload.dense,
                    working=self.share * self.workload.kept + vectors + touched,
                    checkpoint=copies * sum(part.rows * part.width for part in sharded),
                )
            )
        return max(of_each, key=lambda one: one.total)

    def time(self) -> StepTime:
        cluster, device = self.cluster, self.device
        together, crowding = cluster.num_devices > 1, cluster.crowding
        stream = device.stream * cluster.threads
        dense = FLOAT * (self.workload.dense + self.replicated)
        kinds = len({part.placement for held in self.held for part in held} - {"data-parallel"})
        parts = {
            "compute": self._compute(stream, captured=not together),
            "memory": max(map(self._row_seconds, self.held)) + 9 * dense / stream,
            "all_to_all": max(map(self._exchanged, self.held)) + EXCHANGES * kinds * cluster.latency,
            "all_reduce": cluster.reduce(dense) + cluster.latency,
            "overhead": device.together if together else device.alone,
        }
        return StepTime(**{name: seconds * crowding for name, seconds in parts.items()})

    def _compute(self, stream: float, *, captured: bool) -> float:
        width, place = self.workload.model.layout.input_dim, torch.device(self.device.kind)
        half = uses_bfloat16(self.training.precision, width, place)
        rate = (self.device.bfloat16 if half else self.device.float32) * self.cluster.threads
        moved = self.workload.activations * (self.device.captured if captured else 1.0)
        return self.share * (3 * self.workload.flops / rate + moved / stream)

    def _row_seconds(self, held: Sequence[Part]) -> float:
        """Lookups and updates of a device's rows; of data-parallel tables it reads its own share's."""
        moved = 0.0
        for part in held:
            lookup, update = row_traffic(round(part.width), self.decay)
            looked_up = self.share if part.replicated else self.batch * part.lookups
            moved += looked_up * (lookup + (COPIES * FLOAT * part.width if self.cluster.num_devices > 1 else 0))
            moved += 0.0 if part.replicated else update * self._touched(part)
        return moved / self.device.row_stream  # taken to be one thread's work

    def _exchanged(self, held: Sequence[Part]) -> float:
        """Ids to the parts, vectors back, gradients of vectors to the parts again; the larger of sent and received."""
        others = self.batch - self.share
        own = sum(part.sent for part in held)
        vectors = FLOAT * max(others * own, self.share * (self.sent - own))
        asked = sum(self._id_bytes(part) for part in held)
        ids = max(others * asked, self.share * (self.ids - asked))
        return self.cluster.exchange(ids + 2 * vectors, self.device.all_to_all)
