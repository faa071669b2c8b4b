"""Prepare Criteo text as the DeepCTR examples do, with pandas and scikit-learn: argv = source, target."""

import json
import sys
import time
from pathlib import Path

import pandas as pd
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, MinMaxScaler

source, target = Path(sys.argv[1]), Path(sys.argv[2])
numbers = [f"I{i}" for i in range(1, 14)]
categories = [f"C{i}" for i in range(1, 27)]
start = time.perf_counter()
data = pd.read_csv(source, sep="\t")
data[categories] = data[categories].fillna("-1")
data[numbers] = data[numbers].fillna(0)
for name in categories:
    data[name] = LabelEncoder().fit_transform(data[name])
data[numbers] = MinMaxScaler(feature_range=(0, 1)).fit_transform(data[numbers])
train, test = train_test_split(data, test_size=0.2, random_state=0)
target.mkdir(parents=True)
for name, part in (("train", train), ("test", test)):
    part.to_pickle(target / f"{name}.pkl")
print(json.dumps({"seconds": time.perf_counter() - start}))
