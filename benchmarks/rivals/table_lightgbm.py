"""LightGBM on a table: argv = a job of ``table_job.py``."""

import time

import lightgbm
import numpy as np
from table_job import Job
from trees import PATIENCE, ROUNDS, loss, read, search

job = Job.read()
start = time.perf_counter()
parts = read(job)
for name in job.categories:
    known = parts[0][0][name].dropna().unique()
    for frame, _ in parts:
        frame[name] = frame[name].astype("category").cat.set_categories(known)
train, valid, test = parts
fixed = {"verbosity": -1, "num_threads": 1, "seed": job.seed, "objective": "regression" if job.real else "binary"}


def fit(settings, seconds=None):
    """Trees until the validation rows no longer get better, or the time is over."""
    stop = None if seconds is None else time.perf_counter() + seconds

    def in_time(env):
        if stop is not None and time.perf_counter() > stop:
            raise lightgbm.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    data = lightgbm.Dataset(train[0], train[1], free_raw_data=False)
    return lightgbm.train(
        {**fixed, **settings},
        data,
        num_boost_round=ROUNDS,
        valid_sets=[lightgbm.Dataset(valid[0], valid[1], reference=data, free_raw_data=False)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False), in_time],
    )


def draw(chance: np.random.Generator):
    return {
        "learning_rate": float(np.exp(chance.uniform(np.log(0.01), np.log(0.2)))),
        "num_leaves": int(np.exp(chance.uniform(np.log(8), np.log(256)))),
        "min_data_in_leaf": int(np.exp(chance.uniform(np.log(5), np.log(200)))),
        "feature_fraction": float(chance.uniform(0.4, 1.0)),
        "bagging_fraction": float(chance.uniform(0.5, 1.0)),
        "bagging_freq": 1,
        "lambda_l2": float(np.exp(chance.uniform(np.log(1e-3), np.log(30)))),
        "cat_smooth": float(np.exp(chance.uniform(np.log(1), np.log(200)))),
        "cat_l2": float(np.exp(chance.uniform(np.log(1), np.log(100)))),
    }


if job.minutes:
    job.found(search(job, draw, lambda one, left: loss(job, fit(one, left).predict(valid[0]), valid[1])))
else:
    model = fit(job.settings or {})
    job.finish(lambda: model.predict(test[0]), seconds=time.perf_counter() - start)
