"""CatBoost on a table: argv = a job of ``table_job.py``."""

import time

import catboost
import numpy as np
from table_job import Job
from trees import PATIENCE, ROUNDS, loss, read, search

job = Job.read()
start = time.perf_counter()
parts = read(job)
for frame, _ in parts:
    frame[job.categories] = frame[job.categories].fillna("missing").astype(str)
train, valid, test = parts
fixed = {"thread_count": 1, "random_seed": job.seed, "verbose": False, "allow_writing_files": False}
fixed |= {"loss_function": "RMSE" if job.real else "Logloss"}
pools = [catboost.Pool(frame, labels, cat_features=job.categories) for frame, labels in parts]


class InTime:
    """Ends a training when its time is over."""

    def __init__(self, seconds):
        self.stop = time.perf_counter() + seconds

    def after_iteration(self, _):
        return time.perf_counter() < self.stop


def fit(settings, seconds=None):
    model = catboost.CatBoost({**fixed, "iterations": ROUNDS, **settings})
    callbacks = None if seconds is None else [InTime(seconds)]
    return model.fit(pools[0], eval_set=pools[1], early_stopping_rounds=PATIENCE, callbacks=callbacks)


def answers(model, rows):
    return model.predict(rows) if job.real else model.predict(rows, prediction_type="Probability")[:, 1]


def draw(chance: np.random.Generator):
    return {
        "learning_rate": float(np.exp(chance.uniform(np.log(0.02), np.log(0.2)))),
        "depth": int(chance.integers(4, 11)),
        "l2_leaf_reg": float(np.exp(chance.uniform(np.log(0.5), np.log(30)))),
        "random_strength": float(chance.uniform(0.0, 3.0)),
        "bagging_temperature": float(chance.uniform(0.0, 2.0)),
        "one_hot_max_size": int(chance.choice([2, 10, 50])),
        "max_ctr_complexity": int(chance.integers(1, 5)),
    }


if job.minutes:
    job.found(search(job, draw, lambda one, left: loss(job, answers(fit(one, left), pools[1]), valid[1])))
else:
    model = fit(job.settings or {})
    job.finish(lambda: answers(model, test[0]), seconds=time.perf_counter() - start)
