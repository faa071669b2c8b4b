"""Prepare Criteo text with crossrank: argv = source, target."""

import json
import sys
import time
from pathlib import Path

from crossrank.data.prepare import prepare
from crossrank.data.sources import criteo

source, target = Path(sys.argv[1]), Path(sys.argv[2])
start = time.perf_counter()
prepare(source, criteo.schema(min_count=2), target, split=criteo.SPLIT, separator="\t")
print(json.dumps({"seconds": time.perf_counter() - start}))
