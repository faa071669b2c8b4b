"""Measure the paper's practical lessons on the demo's click log; the tables of the guide "Structure and rank".

    crossrank demo --into runs/demo
    python examples/compare_structures.py runs/demo/dataset --into runs/structures --seeds 5

Prints one Markdown table for each question: test log loss over the seeds, and the parameters outside the tables. A seed
that is already there is not trained again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import crossrank as cr
from crossrank.training import train_seeds

BASE = {"embedding": {"dim": 8}, "deep": {"sizes": [64, 64]}}
QUESTIONS = {
    "structure": {
        "deep network alone": {"name": "dnn"},
        "stacked": {"structure": "stacked"},
        "parallel": {"structure": "parallel"},
        "cross network alone": {"structure": "cross-only"},
    },
    "layers": {f"{n} full": {"cross": {"num_layers": n}} for n in (1, 2, 3, 4)},
    "side by side": {
        "1 network of 2 layers": {"cross": {"num_layers": 2}},
        "2 networks of 1 layer": {"cross": {"num_layers": 1, "num_networks": 2}},
        "2 networks of 2 layers": {"cross": {"num_layers": 2, "num_networks": 2}},
    },
    "rank": {
        **{f"low-rank, {r}": {"cross": {"layer": "low_rank", "rank": r}} for r in (2, 4, 8, 16, 32)},
        "mixture, 4 experts of 4": {"cross": {"layer": "mixture", "num_experts": 4, "rank": 4}},
        "full": {"cross": {"layer": "full"}},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--into", type=Path, default=Path("runs/structures"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--steps", type=int, default=None, help="at most; for a quick look")
    words = parser.parse_args()
    dataset = cr.EncodedDataset.open(words.dataset)
    for question in words.questions:
        print(f"\n| {question} | test log loss | parameters |\n| --- | ---: | ---: |")
        for number, (name, model) in enumerate(QUESTIONS[question].items()):
            training = {"learning_rate": 0.01, "max_steps": words.steps}
            into = words.into / question.replace(" ", "-") / str(number)
            found = train_seeds(
                dataset, into=into, seeds=words.seeds, config={"model": {**BASE, **model}, "training": training}
            )
            loss = found["test"]["logloss"]
            parameters = cr.Run.open(into / "seed-0").report["parameters"]["network"]
            print(f"| {name} | {loss['mean']:.4f} ± {loss['deviation'] or 0:.4f} | {parameters:,} |", flush=True)


if __name__ == "__main__":
    main()
