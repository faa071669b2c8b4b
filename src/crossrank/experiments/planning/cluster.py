"""Machines, their devices, and what lies between them."""

from __future__ import annotations

import dataclasses
import math

from crossrank.errors import ConfigError
from crossrank.experiments.planning.rates import Device, Link


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal machines.

    A device is a GPU, or a process on some cores of a processor; where there are more processes than cores, all of them
    wait for each other.
    """

    device: Device
    machines: int = 1
    per_machine: int = 1
    link: Link | None = None  # between machines
    cores: int = 1  # of a machine
    memory: float = 0.0  # of a machine, in bytes; 0 for what its devices have
    price: float | None = None  # of a machine for an hour

    def __post_init__(self) -> None:
        for name, value in (("machines", self.machines), ("devices in a machine", self.per_machine)):
            if value < 1:
                raise ConfigError(f"The number of {name} must be at least 1; got {value}.")
        if self.cores < 1:
            raise ConfigError(f"A machine must have at least one core; got {self.cores}.")
        if self.memory < 0 or (self.price or 0) < 0:
            raise ConfigError("Memory and price must not be negative; one of them is.")
        if self.machines > 1 and self.link is None:
            raise ConfigError(
                f"{self.machines} machines must be connected; no interconnect was given.",
                hint="Give one, such as --interconnect infiniband-400.",
            )

    @property
    def num_devices(self) -> int:
        return self.machines * self.per_machine

    @property
    def threads(self) -> int:
        """Of a process; a GPU counts as one."""
        return max(self.cores // self.per_machine, 1) if self.device.kind == "cpu" else 1

    @property
    def crowding(self) -> float:
        """How many processes share a core."""
        return max(self.per_machine / self.cores, 1.0) if self.device.kind == "cpu" else 1.0

    @property
    def device_memory(self) -> float:
        """Bytes for each device."""
        return self.memory / self.per_machine if self.memory else self.device.memory

    def with_devices(self, count: int) -> Cluster:
        """The same kind of machines with so many devices: one partly filled machine, or several full ones."""
        inside = min(count, self.per_machine)
        memory = self.memory * inside / self.per_machine if self.device.kind == "cuda" else self.memory
        return dataclasses.replace(self, machines=-(-count // inside), per_machine=inside, memory=memory)

    def exchange(self, num_bytes: float, rate: float) -> float:
        """Seconds in which each device sends and receives so many bytes, from and to all others alike."""
        if self.num_devices == 1:
            return 0.0
        inside = (self.per_machine - 1) / (self.num_devices - 1)
        seconds = num_bytes * inside / rate
        return seconds if self.link is None else max(seconds, num_bytes * (1 - inside) / self._outside(self.link))

    def reduce(self, num_bytes: float) -> float:
        """Seconds of an all-reduce along a ring, whose slowest link decides."""
        sent = 2 * (self.num_devices - 1) / self.num_devices * num_bytes
        rate = self.device.all_reduce
        if self.machines > 1 and self.link is not None:
            rate = min(rate, self._outside(self.link))
        return sent / rate

    def _outside(self, link: Link) -> float:
        """What each device has of the link to other machines, in bytes a second."""
        return link.rate if link.for_each_device else link.rate / self.per_machine

    @property
    def latency(self) -> float:
        """Seconds that an exchange takes however little is sent; each doubling of the devices is a round more."""
        if self.num_devices == 1:
            return 0.0
        return max(self.device.latency, self.link.latency if self.link else 0.0) * math.log2(self.num_devices)
