"""LightGBM's lambdarank on rows in groups: argv = a job of ``table_job.py``."""

import json
import time

import lightgbm
import numpy as np
from table_job import Job
from trees import PATIENCE, read

SETTINGS = [
    {},
    {"learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 10, "feature_fraction": 0.5, "lambda_l2": 1.0},
    {"num_leaves": 63, "min_data_in_leaf": 50, "feature_fraction": 0.7, "cat_smooth": 50.0, "cat_l2": 50.0},
]
BAGGED = {"bagging_fraction": 0.8, "bagging_freq": 1}

job = Job.read()
start = time.perf_counter()
parts, sizes = read(job), []
for frame, _ in parts:
    groups = (frame if job.group in job.categories else {job.group: frame.pop(job.group)})[job.group].to_numpy()
    sizes.append(np.diff(np.flatnonzero(np.append(True, groups[1:] != groups[:-1])), append=len(groups)))
for name in job.categories:
    known = parts[0][0][name].dropna().unique()
    for frame, _ in parts:
        frame[name] = frame[name].astype("category").cat.set_categories(known)
train, valid, test = parts


def fit(settings):
    """Trees until NDCG@10 of the validation rows no longer gets better; it, and the trees."""
    data = lightgbm.Dataset(train[0], train[1], group=sizes[0], free_raw_data=False)
    held = lightgbm.Dataset(valid[0], valid[1], group=sizes[1], reference=data, free_raw_data=False)
    fixed = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [10], "verbosity": -1, "num_threads": 1}
    model = lightgbm.train(
        {**fixed, "seed": job.seed, **settings},
        data,
        num_boost_round=300,
        valid_sets=[held],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    return model.best_score["valid_0"]["ndcg@10"], model


some = SETTINGS if job.settings["tuned"] else SETTINGS[:1]
tried = [fit({**settings, **(BAGGED if settings else {})}) for settings in some]
model = max(tried, key=lambda one: one[0])[1]
np.save(job.answers, model.predict(test[0]))
print(json.dumps({"seconds": time.perf_counter() - start}))
