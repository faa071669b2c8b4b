"""Prepare Criteo text with crossrank: argv = source, target, and the known set whose schema is taken."""

import importlib
import json
import sys
import time
from pathlib import Path

import polars  # noqa: F401, an import as the others, which is made on demand

from crossrank.data.prepare import prepare
from crossrank.data.sources.criteo import SPLIT

source, target, known = Path(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3:] or ["criteo"])[0]
schema = importlib.import_module(f"crossrank.data.sources.{known}").schema(min_count=2)
start, used = time.perf_counter(), time.process_time()
prepare(source, schema, target, split=SPLIT, separator="\t")
print(json.dumps({"seconds": time.perf_counter() - start, "processor": time.process_time() - used}))
