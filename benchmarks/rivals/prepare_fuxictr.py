"""Prepare Criteo text with FuxiCTR's own dataset builder: argv = source, target."""

import json
import os
import sys
import time
from pathlib import Path

from fuxictr.preprocess import FeatureProcessor, build_dataset

source, target = os.fspath(sys.argv[1]), Path(sys.argv[2])
numbers = [f"I{i}" for i in range(1, 14)]
categories = [f"C{i}" for i in range(1, 27)]
settings = {
    "dataset_id": target.name,
    "data_root": str(target.parent) + "/",
    "feature_cols": [
        {"name": numbers, "active": True, "dtype": "float", "type": "numeric", "fill_na": 0},
        {"name": categories, "active": True, "dtype": "str", "type": "categorical", "fill_na": ""},
    ],
    "label_col": {"name": "label", "dtype": float},
}
start = time.perf_counter()
target.mkdir(parents=True)
encoder = FeatureProcessor(**settings)
build_dataset(encoder, train_data=source, data_format="csv", sep="\t", min_categr_count=2)
print(json.dumps({"seconds": time.perf_counter() - start}))
