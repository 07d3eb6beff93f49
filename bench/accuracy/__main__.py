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

from bench.accuracy.experiments import EXPERIMENTS, NUM_SEEDS, Experiment
from bench.accuracy.graph_twin import run_graph_twin
from bench.accuracy.report import write_report
from bench.accuracy.twins import run_twin
from bench.workers import RESULTS
from sagann.graph import Graph
from sagann.nn import build_model
from sagann.storage import load_graph
from sagann.train import Trainer


def main() -> None:
    """Parse the arguments, run what is missing, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("SAGANN_DATA"),
        help="folder of the graphs; default $SAGANN_DATA",
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "accuracy.jsonl", help="finished runs, one per line"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    parser.add_argument("--only", default="", help="run experiments whose key contains this")
    parser.add_argument("--system", choices=sorted(SYSTEMS), help="run this system alone")
    parser.add_argument("--report-only", action="store_true")
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
    systems = [name for name in SYSTEMS if arguments.system in (None, name) and (experiment.twin or name != "pyg")]
    jobs = [(system, seed) for seed in range(min(arguments.seeds, experiment.seeds)) for system in systems]
    jobs = [(system, seed) for system, seed in jobs if (experiment.key, system, seed) not in done]
    if not jobs:
        return
    loaded = load_graph(str(arguments.data / f"{experiment.dataset}.npz"))
    for system, seed in jobs:
        graph = experiment.prepare(loaded, seed)
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


def run_pyg(experiment: Experiment, graph: Graph, seed: int) -> float:
    """Train PyG's twin and return the test metric, in percent."""
    return (run_graph_twin if experiment.section == "graphs" else run_twin)(experiment, graph, seed)


SYSTEMS = {"sagann": run_sagann, "pyg": run_pyg}
"What is compared; PyG's twin runs only where an experiment has one."


def read_results(path: Path) -> list[dict]:
    """The finished runs."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
