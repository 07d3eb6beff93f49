"""Run the experiments and write the report: ``python -m bench.accuracy --out docs/accuracy.md``.

Every finished run is appended to a results file, so an interrupted or partial run is continued, not repeated.
The report is written of whatever is there; runs that fall short are shown as falling short.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import torch

from bench.accuracy.experiments import EXPERIMENTS, NUM_SEEDS, PREPARED, Experiment
from bench.accuracy.report import write_report
from bench.accuracy.twins import run_twin
from bench.pages import parser_of
from bench.workers import RESULTS
from sagann.graph import Graph
from sagann.nn import build_model
from sagann.storage import load_graph
from sagann.train import Trainer


def main() -> None:
    parser = parser_of(
        __doc__,
        {},
        data=(os.environ.get("SAGANN_DATA"), "folder of the graphs; $SAGANN_DATA by default", Path),
        results=(RESULTS / "accuracy.jsonl", "finished runs, one per line", Path),
        out=(Path("docs/accuracy.md"), "the report", Path),
        seeds=(NUM_SEEDS, "runs of each experiment, at most"),
        only=("", "run experiments whose key contains this"),
        report_only=(False, "run nothing"),
    )
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.report_only:
        parser.error("nothing says where the graphs are: pass --data FOLDER, or set SAGANN_DATA to it")
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    if not arguments.report_only:
        for experiment in EXPERIMENTS:
            if arguments.only in experiment.key:
                run_experiment(experiment, arguments)
    write_report(read_results(arguments.results), arguments.out)
    print(f"wrote {arguments.out}")


def run_experiment(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """Run every seed of sagann and of PyG's twin that is not among the results yet."""
    done = {(row["key"], row["system"], row["seed"]) for row in read_results(arguments.results)}
    systems = [name for name in SYSTEMS if experiment.twin or name != "pyg"]
    jobs = [(system, seed) for seed in range(min(arguments.seeds, experiment.seeds)) for system in systems]
    jobs = [(system, seed) for system, seed in jobs if (experiment.key, system, seed) not in done]
    if not jobs:
        return
    loaded = load_graph(str(arguments.data / f"{experiment.dataset}.npz"))
    for system, seed in jobs:
        graph = PREPARED[experiment.prepare](loaded, seed)
        start = time.perf_counter()
        value = SYSTEMS[system](experiment, graph, seed)
        seconds = time.perf_counter() - start
        row = {"key": experiment.key, "system": system, "seed": seed, "value": value, "seconds": round(seconds, 2)}
        with arguments.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{experiment.key:32s} {system:7s} seed {seed}  {experiment.metric} {value:6.2f}  {seconds:7.1f} s",
            flush=True,
        )


def run_sagann(experiment: Experiment, graph: Graph, seed: int) -> float:
    """Train with the Trainer and return the test metric, in percent."""
    torch.manual_seed(seed)
    trainer = Trainer(build_model(experiment.model, graph), graph, experiment.train_config(seed), progress=False)
    trainer.fit()
    return 100 * trainer.evaluate()["test"][experiment.metric]


SYSTEMS = {"sagann": run_sagann, "pyg": run_twin}
"What is compared; PyG's twin runs only where an experiment has one."


def read_results(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
