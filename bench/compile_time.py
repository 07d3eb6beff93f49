"""What compiling costs: ``python -m bench.compile_time``.

For every model of the zoo, a process whose cache of kernels is empty, and then one that finds them. Compiling is what
the first epoch (forward and backward of 2 layers on the embedded graph) takes longer than the next ones. Imports come
before it, and among them what PyTorch imports by itself as soon as anything is traced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.workers import ROOT
from sagann.nn import MODELS

CHILD = """
import json, sys, time
start = time.perf_counter()
import torch
from sagann.graph import demo_graph
from sagann.nn import ModelConfig, build_model
import torch._dynamo, sagann.runtime.in_memory.engine, sagann.kernels.edge.cpu
imported = time.perf_counter()
graph = demo_graph()
model = build_model(ModelConfig(model=sys.argv[1], hidden=128), graph)
graph = model.prepare(graph)
hops = graph.hops(model.num_hops)
seconds = []
for _ in range(4):
    begin = time.perf_counter()
    model(hops, graph.features).sum().backward()
    seconds.append(time.perf_counter() - begin)
print(json.dumps({"import": imported - start, "first": seconds[0], "next": min(seconds[1:])}))
"""
REPETITIONS = 3


def main() -> None:
    """Print the table."""
    print("| model | kernels compiled, s | kernels found, s | imports before, s |")
    print("|---|--:|--:|--:|")
    for model in MODELS:
        with TemporaryDirectory() as cache:
            first = _measure(model, Path(cache))
            later = [_measure(model, Path(cache)) for _ in range(REPETITIONS)]
        compiled = first["first"] - first["next"]
        found = median(run["first"] - run["next"] for run in later)
        print(
            f"| {model} | {compiled:.2f} | {found:.2f} | {median(run['import'] for run in later):.2f} |", flush=True
        )


def _measure(model: str, cache: Path) -> dict[str, float]:
    environment = dict(os.environ, SAGANN_CACHE=str(cache), PYTHONPATH=str(ROOT))
    run = subprocess.run(
        [sys.executable, "-c", CHILD, model], env=environment, capture_output=True, text=True, check=True
    )
    measured: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    main()
