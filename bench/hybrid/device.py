"""A CUDA device and the processor together, beside each alone: ``python -m bench.hybrid.device > bench/results/hybrid_device.md``.

Contestants train the same mini-batches by turns of ``--measured`` iterations: the processor alone with all cores, the device alone as ``--device cuda``
trains, the device as the only trainer of ``--devices``, and both together by a policy. Policies have settled before. An iteration is
the time from one optimizer step to the next one, sampling and loading included, which run ahead of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import fmean, median

import torch

from bench.epochs.graphs import hubs_first
from bench.hybrid.runs import Run, predictor_of
from bench.pages import command_line, head, parser_of, row
from bench.timing import where
from sagann.graph import Graph
from sagann.runtime.places import device_named
from sagann.train import TrainConfig
from sagann.train.batch_epochs import SampledEpochs
from sagann.train.hybrid_epochs import HybridEpochs

COLUMNS = (
    "who trains | iteration, ms | seeds of the device | sampling, loading, ms | copies, ms | processor, device, ms | "
    "threads that sample, load, train"
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    graph = hubs_first(options)
    device = device_named(options.device)
    print(
        f"# Processor and device together\n\n`{command_line('bench.hybrid.device', arguments)}`; {where(device)} "
        f"R-MAT, {graph.num_vertices:,} vertices, {graph.num_edges:,} edges, {options.features} features, hidden {options.hidden}, "
        f"batches of {options.batch_size} seeds, {options.threads} threads that sample and as many that load where one device trains. Medians of "
        f"{options.rounds} turns of {options.measured} iterations.\n"
    )
    for model, sample in (each.split(":") for each in options.tasks):
        print(f"\n## {model}, fanouts {sample}\n\n{head(COLUMNS)}")
        with ExitStack() as stack:
            runs = {name: stack.enter_context(run) for name, run in _runs(model, sample, graph, device, options)}
            # This compiles, and settles.
            for run in runs.values():
                run(options.settle)
            turns: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(options.rounds):
                for name, run in runs.items():
                    # Batches that were made ahead during the others' turns are not counted.
                    run(5)
                    turns[name].append(fmean(run(options.measured)))
            for name, run in runs.items():
                print(row([name, f"{1e3 * median(turns[name]):.1f}", *_work(run, options.measured)]), flush=True)


def _runs(
    model: str, sample: str, graph: Graph, device: torch.device, options: argparse.Namespace
) -> Iterator[tuple[str, Run]]:
    sampled = {"sample": tuple(map(int, sample.split(","))), "batch_size": options.batch_size}
    config = TrainConfig(**sampled, sampling_threads=options.threads)

    def made(where: torch.device, source_of: type[SampledEpochs] | type[HybridEpochs], config: TrainConfig) -> Run:
        layers = len(config.sample or ())
        predictor = predictor_of(graph, model, options.hidden, layers=layers, device=where)
        # Evaluation is not measured, so the graph stays where samplers read it.
        source = source_of(predictor, predictor.prepare(graph), config)
        return Run(source, torch.optim.Adam(predictor.model.parameters(), lr=1e-3), device)

    yield "the processor", made(torch.device("cpu"), SampledEpochs, config)
    yield "the device", made(device, SampledEpochs, config)
    if device.type != "cuda":
        return
    for devices, sharing in ((str(device), "joint"), (f"host,{device}", "joint"), (f"host,{device}", "hyscale")):
        chosen = TrainConfig(**sampled, devices=devices, sharing=sharing, sampling_threads=1)
        yield f"`--devices {devices}`, {sharing}", made(device, HybridEpochs, chosen)


def _work(run: Run, iterations: int) -> list[str]:
    """What trainers did in the last turn, an iteration; nothing of a single one."""
    if run.manager is None:
        return [""] * 5
    work, threads = run.manager.work, run.manager.assignment.threads
    each = 1e3 / iterations
    part = 1 - work.seeds.get("host", 0) / max(1, sum(work.seeds.values()))
    others = dict(work.train_s)
    trained = [others.pop("host", 0.0), sum(others.values())]
    return [
        f"{part:.1%}",
        f"{work.sample_s * each:.1f}, {work.load_s * each:.1f}",
        f"{sum(work.transfer_s.values()) * each:.1f}",
        ", ".join(f"{seconds * each:.1f}" for seconds in trained),
        f"{threads.sample}, {threads.load}, {threads.train}",
    ]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"vertices": 2e6, "edges": 4e7, "features": 128, "hidden": 256}
        | {"batch_size": 4096, "threads": 4, "rounds": 3, "device": "cuda:0"},
        tasks=(["sage:25,10", "gat:25,10", "sage:15,10,5"], "models and fanouts"),
        settle=(40, "iterations in which a policy settles"),
        measured=(30, "iterations of a turn"),
    ).parse_args(arguments)


if __name__ == "__main__":
    main()
