"""A device's figures in one table: ``python -m bench.device``. It asks nothing, and goes on where something fails.

Epochs of the eight models against the best of PyG's variants on the same device; the fused gathers against the device's
copy bandwidth; epochs streamed to the device within an eighth of their working set, their host in memory, against the
same code without a budget; and the Trainer's epochs, recorded, queued, and PyG's in CUDA graphs. A part ends after ``--limit`` seconds, and
is told as a line of JSON as well. With ``--device cpu`` the same runs on the processor, to try the script out. Sampled epochs are those of
:mod:`bench.minibatches`, rows of a store those of :mod:`bench.cold_bytes.device`.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from bench.epochs import pyg_worker, sagann_worker
from bench.epochs.graphs import SHAPES, graph_of, specification_of, write_task
from bench.epochs.pyg_worker import VARIANTS
from bench.epochs.report import MODELS
from bench.epochs.sagann_worker import TrainerRun, config_of, load
from bench.kernels.gathers import GATHERS, Gather
from bench.pages import command_line, figure, head, parser_of, row
from bench.standalone.serve import UnsupportedError
from bench.standalone.stored import ARRAYS
from bench.standalone.training import Training
from bench.streaming.worker import SHARE, Folded, within
from bench.timing import alternate, device_to_measure, finish, median_ratio, where
from sagann.graph import Graph, Topology
from sagann.kernels.edge import dialect_for
from sagann.plan.steps import UNLIMITED
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.stream import stream


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    arguments.device = device_to_measure(arguments.device)
    print(
        f"`{command_line('bench.device', given)}`; {where(arguments.device)} Two layers, hidden {arguments.hidden}, no dropout; seconds are medians of "
        f"{arguments.rounds} rounds in alternation.\n\n{HEADER}",
        flush=True,
    )
    with warnings.catch_warnings():
        # Of PyTorch's sparse matrices, which are PyG's.
        warnings.simplefilter("ignore", UserWarning)
        return _measure(arguments)


def _measure(arguments: argparse.Namespace) -> int:
    wrong = 0
    signal.signal(signal.SIGALRM, _too_long)
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_device_", dir=arguments.work) as folder:
            for what, contest in _contests(dataset, Path(folder), arguments):
                rows: list[str] = []
                try:
                    signal.alarm(arguments.limit)
                    rows += contest()
                    print("\n".join(rows), flush=True)
                except Exception as error:  # noqa: BLE001
                    # The rest of the table is worth having all the same.
                    wrong += 1
                    first = (str(error).splitlines() or [""])[0]
                    said = f"failed: {type(error).__name__}: {first}"[:200].replace("|", "/")
                    print(row([what, dataset, "-", "-", "-", "-", said]), flush=True)
                finally:
                    signal.alarm(0)
                    print(json.dumps({"part": what, "on": dataset, "rows": rows}), flush=True)
                    free(arguments.device)
    return int(wrong > 0)


def _too_long(*_: object) -> None:
    raise TimeoutError("the part took too long")


def _contests(
    dataset: str, folder: Path, how: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Iterable[str]]]]:
    plain = graph_of(write_task(folder, dataset, [*how.models, *how.streamed, *how.recorded], how.hidden))

    def part(kind: str, model: str, run: Callable[..., Iterable[str]], **others: Any) -> tuple[str, Any]:
        specification = specification_of(model, hidden=how.hidden, folder=str(folder), **others)
        return f"{kind}, {model}", partial(run, dataset, model, specification, folder, how)

    yield from (part("epoch", model, epochs) for model in how.models)
    yield "gathers", partial(gathers, dataset, plain, how)
    yield from (part("streamed", model, streamed) for model in how.streamed)
    yield from (part("recorded", model, recorded, defaults=True, dropout=0.5) for model in how.recorded)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"hidden": 128, "rounds": 5, "work": None, "device": "cuda", "at_least": 0.5},
        datasets=(["reddit-small", "reddit-middle"], "graphs", SHAPES),
        models=(list(MODELS), "models of epochs in memory", MODELS),
        variants=(list(VARIANTS), "PyG's forms of the edges", VARIANTS),
        recorded=(list(MODELS), "models of recorded epochs", MODELS),
        limit=(60, "most seconds of a part"),
        streamed=(["gcn", "gated-gcn", "gat", "ggnn"], "models of streamed epochs", MODELS),
        copied=(1024.0, "MiB that are copied to know the bandwidth by"),
    ).parse_args(given)


LOSS_TOLERANCE = 1e-3
"Relative: contestants whose first losses differ by more do not compute the same, and do not count."
HEADER = head("what | on | sagann s | against | s | is | remarks", words=("on", "against", "remarks"))


def timed(contestants: Mapping[str, Callable[[], object]], how: argparse.Namespace) -> dict[str, list[float]]:
    return alternate(contestants, rounds=how.rounds, at_least_s=how.at_least, device=how.device)


def line(
    what: str, on: str, ours: list[float], against: str, theirs: list[float], remarks: str, *, longer: bool = False
) -> str:
    pair = (ours, theirs) if longer else (theirs, ours)
    seconds = [figure(median(each) if each else None, ".4g") for each in (ours, theirs)]
    ratio = figure(median_ratio(*pair) if ours and theirs else None)
    return row([what, on, seconds[0], against, seconds[1], ratio, remarks])


def epochs(dataset: str, model: str, specification: dict, folder: Any, how: argparse.Namespace) -> list[str]:
    """An epoch against the best of PyG's variants, each of which runs in alternation with sagann's."""
    refused: list[str] = []
    pairs: dict[str, dict[str, list[float]]] = {}
    what = f"epoch, {model}"
    try:
        ours = _ours(specification, folder, how.device)
        first_loss = _loss(ours)
        peak = peak_bytes(ours.run, how.device)
    except torch.OutOfMemoryError:
        return [line(what, dataset, [], "PyG", [], "out of memory")]
    for variant in how.variants:
        try:
            theirs = _theirs(specification | {"variant": variant}, folder, how.device)
            if abs(_loss(theirs) - first_loss) > LOSS_TOLERANCE * abs(first_loss):
                refused.append(f"{variant}: another loss")
                continue
            contestants: dict[str, Callable[[], object]] = {"sagann": ours.run, variant: theirs.run}
            pairs[variant] = timed(contestants, how)
        except torch.OutOfMemoryError:
            refused.append(f"{variant}: out of memory")
        except UnsupportedError:
            continue
        except (RuntimeError, NotImplementedError, ValueError) as error:
            # A form of the edges that PyG's layer has no kernel for on this device.
            refused.append(f"{variant}: {(str(error).splitlines() or ['failed'])[0][:60]}")
        finally:
            theirs = None
            free(how.device)
    remarks = "; ".join([*([] if peak is None else [f"{peak / 2**20:.0f} MiB beyond the graph"]), *refused])
    if not pairs:
        return [line(what, dataset, [], "PyG", [], remarks)]
    best = min(pairs, key=lambda variant: median(pairs[variant][variant]))
    return [line(what, dataset, pairs[best]["sagann"], f"PyG, {best}", pairs[best][best], remarks)]


def gathers(dataset: str, graph: Graph, how: argparse.Namespace) -> Iterator[str]:
    """Fused gathers against copying the bytes that they must move where no row stays in a cache."""
    copied_bytes = int(how.copied * 2**20)
    source, target = torch.ones(2, copied_bytes, dtype=torch.uint8, device=how.device)
    copies = timed({"copy": partial(target.copy_, source)}, how)["copy"]
    # Read and written.
    rate = 2 * copied_bytes / median(copies)
    topology = graph.topology.to(how.device)
    for name, make in GATHERS.items():
        torch.manual_seed(0)
        gather = make(graph.topology, how.hidden)
        arrays = {key: array.to(how.device) for key, array in gather.arrays.items()}
        run = partial(dialect_for(topology.device.type).run, gather.function, topology, arrays)
        taken = timed({"ours": run}, how)
        floor_s = traffic_bytes(gather, topology, run()) / rate
        what = f"gather, {name.replace('_', ' ')}, {how.hidden} features"
        remarks = f"copies at {rate / 1e9:.0f} GB/s, read and written"
        yield line(what, dataset, taken["ours"], "copying its bytes", [floor_s] * how.rounds, remarks)
        free(how.device)


def traffic_bytes(gather: Gather, topology: Topology, results: Sequence[Tensor]) -> int:
    """Bytes that a gather moves when no row stays in a cache: a source row for every edge, a destination's row and result once."""
    rows = {"src": topology.num_edges, "edge": topology.num_edges, "dst": topology.num_dst}
    given = sum(
        rows[each.side] * gather.arrays[each.name][0].numel() * gather.arrays[each.name].element_size()
        for each in gather.function.inputs
    )
    return given + sum(each.numel() * each.element_size() for each in (topology.indices, topology.indptr, *results))


def streamed(dataset: str, model: str, specification: dict, folder: Any, how: argparse.Namespace) -> list[str]:
    """An epoch within a share of the dense working set, its host in memory, against P = 1 of the same code."""
    graph = load(specification, folder)
    x, labels = graph.features, graph.labels
    assert x is not None
    assert labels is not None
    train = graph.splits["train"].nonzero().squeeze(1).to(how.device)
    network = sagann_worker.model_of(specification, graph).to(how.device)
    whole = stream(network, graph, budget_bytes=UNLIMITED, device=how.device)
    wanted = whole.plan(x, folded=True).plan.peak_bytes // SHARE
    limited = within(wanted, network, graph, None, device=how.device)
    ours, dense = (Folded(each, x, labels.to(how.device), train) for each in (limited, whole))
    peak = peak_bytes(ours.run, how.device)
    try:
        taken = timed({"ours": ours.run, "dense": dense.run}, how)
    except torch.OutOfMemoryError:
        taken = timed({"ours": ours.run}, how) | {"dense": []}
    limited.timeline = recorder = Recorder()
    ours.run()
    limited.timeline = None
    plan = limited.plan(x, folded=True).plan
    remarks = [f"{recorder.hidden:.0%} hidden", f"P = {plan.num_intervals}"]
    remarks.append(f"planned {plan.peak_bytes / 2**20:.1f} of {plan.budget_bytes / 2**20:.1f} MiB")
    remarks += [] if peak is None else [f"measured {peak / 2**20:.1f} MiB"]
    remarks += ["1/8 cannot be met"] if plan.budget_bytes > wanted else []
    remarks += [] if taken["dense"] else ["P = 1 ran out of memory"]
    what = f"streamed within 1/{SHARE}, {model}"
    return [line(what, dataset, taken["ours"], "P = 1", taken["dense"], ", ".join(remarks), longer=True)]


def recorded(dataset: str, model: str, specification: dict, folder: Any, how: argparse.Namespace) -> Iterator[str]:
    """The Trainer's epochs with dropout and evaluation: recorded, against queued ones and PyG's in CUDA graphs."""
    taken: dict[str, list[float]] = {}
    for name in ("queued", "recorded"):
        run = TrainerRun(config_of(specification), load(specification, folder), device=how.device)
        if name == "queued":
            # What the host runs in each pass cannot be recorded.
            run.trainer.model.register_forward_hook(lambda *_: None)
        try:
            taken |= timed({name: run.run}, how)
        finally:
            run.close()
    theirs = _theirs(specification | {"variant": "reduce-overhead"}, folder, how.device)
    taken |= timed({"PyG, reduce-overhead": theirs.run}, how)
    for against in ("queued", "PyG, reduce-overhead"):
        yield line(f"recorded, {model}", dataset, taken["recorded"], against, taken[against], "")


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Peak memory of a second run on the device, above the memory in use before it; None on the processor.

    The first run allocates what stays: workspaces of matrix products, 32 MiB on an H100, and the optimizer's moments.
    """
    run()
    if device.type != "cuda":
        return None
    free(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    finish(device)
    return torch.cuda.max_memory_allocated(device) - before


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _ours(specification: dict, folder: Any, device: torch.device) -> Training:
    graph = sagann_worker.load(specification, folder).to(device)
    return _moved(sagann_worker.build(specification, graph), device)


def _theirs(specification: dict, folder: Any, device: torch.device) -> Training:
    loaded = pyg_worker.load(specification, folder)
    stored = loaded.stored
    on_device = replace(stored, **{name: getattr(stored, name).to(device) for name in ARRAYS})
    weight: Tensor | None = loaded.weight
    moved = pyg_worker.Loaded(loaded.edges.to(device), None if weight is None else weight.to(device), on_device)
    return _moved(pyg_worker.build(specification, moved), device)


def _moved(training: Training, device: torch.device) -> Training:
    """With its parameters on the device; the optimizer has no state yet."""
    for group in training.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data = parameter.data.to(device)
    return training


def _loss(training: Training) -> float:
    with torch.no_grad():
        return float(training.loss())


if __name__ == "__main__":
    raise SystemExit(main())
