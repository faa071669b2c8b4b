"""How fast devices and links are. What is documented is told apart from what was measured.

No device reaches what its data sheet says. The H200 was measured (docs/benchmarks.md, "Training on one GPU"); of the
other GPUs the data sheet's numbers are taken times the shares of its own that the H200 reached.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, TypeVar

from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.files import read_json, write_json

RATES_FILE = Path("crossrank-rates.json")
HERE = "here"
Known = TypeVar("Known")
CALIBRATE = "Measure this machine with: crossrank plan --calibrate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, or a core of a processor; rates are of one of them, a second."""

    about: str
    kind: Literal["cpu", "cuda"]
    memory: float  # bytes of a GPU, or of the machine that a core belongs to
    float32: float  # floating-point operations in matrix products
    bfloat16: float
    stream: float  # bytes of elementwise operations
    row_stream: float  # bytes of lookups and updates of embedding rows
    all_reduce: float  # bytes that a device sends to the others of its machine
    all_to_all: float
    latency: float  # seconds of an exchange between two, whatever its size
    alone: float  # seconds of a step besides, in one process
    together: float  # the same with several, through TorchRec
    captured: float = 1.0  # share of elementwise traffic that is left where one GPU takes steps as one program
    cores: int = 1  # of the machine that was measured

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, str) and not value > 0:
                raise ConfigError(f"'{name}' must be positive; got {value}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """Between machines: bytes a second each way, for each device or for a whole machine."""

    about: str
    rate: float
    latency: float
    for_each_device: bool


# Measured on one H200, at the paper's Criteo shape (docs/benchmarks.md): 20.9 MFLOP · 65,536 rows in 2.33 ms of
# products; 138 MB of Adam and average in 34 µs; elementwise kernels of the captured program 0.63 ms at 65,536 rows,
# where operations one by one would move 16 GB; what is left of a step of 512 rows. Kernels for embedding rows take as
# long as what operations one by one would move at 0.83 of that rate.
H200_PRODUCTS, H200_STREAM, CAPTURED, CAPTURED_STEP, H200_ROWS = 588e12, 4.06e12, 0.16, 0.12e-3, 3.39e12
# Share of a data sheet's numbers that this is, and share of NVLink's that others measured (380 of 450 GB/s each way:
# github.com/NVIDIA/nccl/issues/1264). Share of a network's line rate: assumed to be the same.
PRODUCTS_REACHED, STREAM_REACHED, LINK_REACHED = H200_PRODUCTS / 989e12, H200_STREAM / 4.8e12, 0.83
ROWS_REACHED = H200_ROWS / 4.8e12
NCCL_LATENCY, NETWORK_LATENCY, ETHERNET_LATENCY = 10e-6, 15e-6, 50e-6  # of a round of an exchange; assumed
# Measured on a processor (an AMD EPYC core): the host's part of a step through TorchRec. On GPUs it launches kernels.
TOGETHER = 6.1e-3


def _gpu(about: str, *, memory: float, bfloat16: float, float32: float, stream: float, nvlink: float) -> Device:
    """Of a data sheet: bytes, FLOP/s without sparsity, bytes/s, and bytes/s of NVLink both ways together."""
    inside = nvlink / 2 * LINK_REACHED
    return Device(
        about=about,
        kind="cuda",
        memory=memory,
        float32=float32 * PRODUCTS_REACHED,
        bfloat16=bfloat16 * PRODUCTS_REACHED,
        stream=stream * STREAM_REACHED,
        row_stream=stream * ROWS_REACHED,
        all_reduce=inside,
        all_to_all=inside,
        latency=NCCL_LATENCY,
        alone=CAPTURED_STEP,
        together=TOGETHER,
        captured=CAPTURED,
    )


DEVICES = {
    # NVIDIA H200 Tensor Core GPU datasheet, SXM: 141 GB, 4.8 TB/s, 1,979 TFLOPS bfloat16 with sparsity, 67 float32
    "h200": _gpu(
        "NVIDIA H200 SXM; products, memory and one GPU's step measured, links documented",
        memory=141e9, bfloat16=989e12, float32=67e12, stream=4.8e12, nvlink=900e9,
    ),
    # NVIDIA H100 Tensor Core GPU datasheet, SXM: 80 GB, 3.35 TB/s, the same units
    "h100": _gpu(
        "NVIDIA H100 SXM; documented, times the shares that the H200 reached",
        memory=80e9, bfloat16=989e12, float32=67e12, stream=3.35e12, nvlink=900e9,
    ),
    # NVIDIA A100 Tensor Core GPU datasheet, 80 GB SXM: 2,039 GB/s, 312 TFLOPS bfloat16, 19.5 float32, NVLink 600 GB/s
    "a100": _gpu(
        "NVIDIA A100 80 GB SXM; documented, times the shares that the H200 reached",
        memory=80e9, bfloat16=312e12, float32=19.5e12, stream=2.039e12, nvlink=600e9,
    ),
    # Software Optimization Guide for the AMD Zen4 Microarchitecture (57647): two FMA of 256 bits a cycle, so 32
    # float32 operations; at 3.2 GHz 102 GFLOP/s, twice that in bfloat16. What a step takes besides, alone: what
    # docs/benchmarks.md ("Training on two cores") leaves of 14 ms. The rest: `plan --calibrate`, beside other programs.
    "cpu": Device(
        about="a core of an AMD EPYC (Zen 4); products documented, the rest measured on two such cores",
        kind="cpu", memory=24e9, float32=102e9, bfloat16=204e9, stream=11.7e9, row_stream=9.5e9, all_reduce=1.5e9,
        all_to_all=1.4e9, latency=0.7e-3, alone=1.5e-3, together=TOGETHER, cores=2,
    ),
}  # fmt: skip

LINKS = {
    # NVIDIA ConnectX-7 datasheet: NDR, 400 Gb/s a port; in a DGX H100 or H200 one for each GPU. HDR has 200.
    "infiniband-400": Link(about="InfiniBand NDR, 400 Gb/s for each GPU", rate=50e9 * LINK_REACHED,
                           latency=NETWORK_LATENCY, for_each_device=True),
    "infiniband-200": Link(about="InfiniBand HDR, 200 Gb/s for each GPU", rate=25e9 * LINK_REACHED,
                           latency=NETWORK_LATENCY, for_each_device=True),
    "roce-200": Link(about="RoCE, 200 Gb/s for each GPU", rate=25e9 * LINK_REACHED,
                     latency=NETWORK_LATENCY, for_each_device=True),
    # IEEE 802.3: the line rate, shared by a machine's devices. Latencies of all links are assumed.
    "ethernet-100": Link(about="Ethernet, 100 Gb/s for a machine", rate=12.5e9 * LINK_REACHED,
                         latency=ETHERNET_LATENCY, for_each_device=False),
    "ethernet-25": Link(about="Ethernet, 25 Gb/s for a machine", rate=3.125e9 * LINK_REACHED,
                        latency=ETHERNET_LATENCY, for_each_device=False),
    "ethernet-10": Link(about="Ethernet, 10 Gb/s for a machine", rate=1.25e9 * LINK_REACHED,
                        latency=ETHERNET_LATENCY, for_each_device=False),
}  # fmt: skip


def find_device(name: str, rates: Path = RATES_FILE) -> Device:
    """A device by name; ``here`` is what :func:`~crossrank.experiments.planning.calibrate` wrote into a file."""
    if name == HERE:
        if not rates.exists():
            raise ConfigError(f"--device {HERE} must have been measured; {rates} does not exist.", hint=CALIBRATE)
        return read_rates(rates)
    return _find("device", name, DEVICES, more=(HERE,))


def find_link(name: str) -> Link:
    return _find("interconnect", name, LINKS)


def _find(what: str, name: str, known: dict[str, Known], more: tuple[str, ...] = ()) -> Known:
    if name not in known:
        names = [*known, *more]
        raise ConfigError(
            f"--{what} must be one of {listing(names, most=20)}; got '{name}'.", hint=did_you_mean(name, names)
        )
    return known[name]


def read_rates(path: Path) -> Device:
    device: Device = read_json(path, Device, error=ConfigError, hint=CALIBRATE)
    return device


def write_rates(path: Path, device: Device) -> None:
    write_json(path, dataclasses.asdict(device))
