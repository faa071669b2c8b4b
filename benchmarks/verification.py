"""What comparing a dataset with its checksums costs beside the first epoch: processor time of the thread that does it.

    python benchmarks/verification.py --rows 1000000

Processor time, not seconds on the clock, because a difference of a hundredth drowns in what else a machine does.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

import crossrank as cr
from crossrank.data import verification
from crossrank.data.generators.synthetic import synthesize
from crossrank.data.verification import Verification


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    data = np.random.default_rng(0).integers(0, 256, 64 << 20, np.uint8).data
    hashes = {"sha256": hashlib.sha256, "sha1": hashlib.sha1, "blake2b": hashlib.blake2b, "crc32": zlib.crc32}
    for name, function in hashes.items():
        started = time.process_time()
        function(data)
        print(f"{name}: {len(data) / (time.process_time() - started) / 1e9:.2f} GB/s")
    spent, compare = [], Verification._compare

    def timed(self: Verification, name: str) -> None:
        started = time.thread_time()
        compare(self, name)
        spent.append(time.thread_time() - started)

    Verification._compare = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        synthesize(Path(folder) / "data", rows=rows, format="encoded", progress=False)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.npy"))
        for name in ("dcn-v2", "logistic-regression"):
            spent.clear()
            verification._verified.clear()
            config = {"model": {"name": name}, "training": {"epochs": 1, "batch_size": 4096, "device": "cpu"}}
            dataset, started = cr.EncodedDataset.open(Path(folder) / "data"), time.process_time()
            cr.train(dataset, into=Path(folder) / name, config=config, progress=False)
            whole = time.process_time() - started
            share = f"{sum(spent):.2f} s of {whole:.1f} s, {sum(spent) / whole:.2%}"
            print(f"{name}, one epoch of {rows:,} rows, {size / 1e6:.0f} MB: {share}")


if __name__ == "__main__":
    main()
