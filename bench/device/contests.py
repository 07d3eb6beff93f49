"""What is measured on a device; each contest gives lines of the one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bench.device.clock import alternate, copy_bytes_per_s, free, peak_bytes
from bench.epochs import pyg_worker, sagann_worker
from bench.kernels.gathers import GATHERS, Gather
from bench.standalone.serve import UnsupportedError
from bench.standalone.stored import ARRAYS
from bench.standalone.training import Training
from bench.streaming.worker import SHARE, Folded, within
from bench.timing import median_ratio
from sagann.graph import Graph, Topology
from sagann.kernels.dialects import dialect_for
from sagann.plan.steps import UNLIMITED
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.stream import stream

LOSS_TOLERANCE = 1e-3
"Relative: contestants whose first losses differ by more do not compute the same, and do not count."
HEADER = "| what | on | sagann s | against | s | is | remarks |\n|---|---|--:|---|--:|--:|---|"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """How to measure."""

    device: torch.device
    "On what."
    rounds: int
    "Turns of each in alternation."
    at_least_s: float
    "Shorter runs are repeated within a turn."
    copied_bytes: int
    "To know the copy bandwidth by."


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of the table."""

    what: str
    "Was measured."
    on: str
    "Which graph."
    ours_s: float | None
    "Seconds of sagann's; None where it did not run."
    against: str
    "What it is compared with."
    theirs_s: float | None
    "Seconds of that."
    ratio: float | None
    "How the two compare: times as fast for epochs and gathers, times as long for epochs inside a budget."
    remarks: str = ""
    "What else is to be known."

    def text(self) -> str:
        """As a line of Markdown."""
        cells = [self.what, self.on, _seconds(self.ours_s), self.against, _seconds(self.theirs_s)]
        cells += ["-" if self.ratio is None else f"{self.ratio:.2f}"]
        cells += [self.remarks]
        return f"| {' | '.join(cells)} |"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.4g}"


def epochs(
    dataset: str, model: str, specification: dict, variants: Sequence[str], folder: Any, how: Measure
) -> Line:
    """An epoch against the best of PyG's variants, each of which runs in alternation with sagann's."""
    refused: list[str] = []
    pairs: dict[str, dict[str, list[float]]] = {}
    line = partial(Line, what=f"epoch, {model}", on=dataset)
    try:
        ours = _ours(specification, folder, how.device)
        first_loss = _loss(ours)
        peak = peak_bytes(ours.run, how.device)
    except torch.OutOfMemoryError:
        return line(ours_s=None, against="PyG", theirs_s=None, ratio=None, remarks="out of memory")
    for variant in variants:
        try:
            theirs = _theirs(specification | {"variant": variant}, folder, how.device)
            if abs(_loss(theirs) - first_loss) > LOSS_TOLERANCE * abs(first_loss):
                refused.append(f"{variant}: another loss")
                continue
            contestants: dict[str, Callable[[], object]] = {"sagann": ours.run, variant: theirs.run}
            pairs[variant] = alternate(contestants, rounds=how.rounds, at_least_s=how.at_least_s, device=how.device)
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
        return line(ours_s=None, against="PyG", theirs_s=None, ratio=None, remarks=remarks)
    best = min(pairs, key=lambda variant: median(pairs[variant][variant]))
    ratio = median_ratio(pairs[best][best], pairs[best]["sagann"])
    return line(
        ours_s=median(pairs[best]["sagann"]),
        against=f"PyG, {best}",
        theirs_s=median(pairs[best][best]),
        ratio=ratio,
        remarks=remarks,
    )


def gathers(dataset: str, graph: Graph, features: int, how: Measure) -> Iterator[Line]:
    """Fused gathers against copying the bytes that they must move where no row stays in a cache."""
    rate = copy_bytes_per_s(how.device, how.copied_bytes)
    topology = graph.topology.to(how.device)
    for name, make in GATHERS.items():
        torch.manual_seed(0)
        gather = make(graph.topology, features)
        arrays = {key: array.to(how.device) for key, array in gather.arrays.items()}
        run = partial(dialect_for(topology.device.type).run, gather.function, topology, arrays)
        taken = alternate({"ours": run}, rounds=how.rounds, at_least_s=how.at_least_s, device=how.device)
        ours_s, floor_s = median(taken["ours"]), traffic_bytes(gather, topology, run()) / rate
        yield Line(
            what=f"gather, {name.replace('_', ' ')}, {features} features",
            on=dataset,
            ours_s=ours_s,
            against="copying its bytes",
            theirs_s=floor_s,
            ratio=floor_s / ours_s,
            remarks=f"copies at {rate / 1e9:.0f} GB/s, read and written",
        )
        free(how.device)


def traffic_bytes(gather: Gather, topology: Topology, results: Sequence[Tensor]) -> int:
    """Bytes that a gather moves when no row stays in a cache: a source row for every edge, a destination's row and result once."""
    rows = {"src": topology.num_edges, "edge": topology.num_edges, "dst": topology.num_dst}
    given = sum(
        rows[each.side] * gather.arrays[each.name][0].numel() * gather.arrays[each.name].element_size()
        for each in gather.function.inputs
    )
    return given + sum(each.numel() * each.element_size() for each in (topology.indices, topology.indptr, *results))


def streamed(dataset: str, model: str, specification: dict, graph: Graph, how: Measure) -> Line:
    """An epoch within a share of the dense working set, its host in memory, against P = 1 of the same code."""
    x, labels = graph.features, graph.labels
    assert x is not None
    assert labels is not None
    train = graph.splits["train"].nonzero().squeeze(1).to(how.device)
    network = sagann_worker.model_of(specification, graph).to(how.device)
    whole = stream(network, graph, budget_bytes=UNLIMITED, device=how.device)
    wanted = whole.plan(x, folded=True).plan.peak_bytes // SHARE
    limited = within(wanted, network, graph, None, device=how.device)
    ours, dense = (Folded(each, x, labels.to(how.device), train) for each in (limited, whole))
    line = partial(Line, what=f"streamed within 1/{SHARE}, {model}", on=dataset, against="P = 1")
    peak = peak_bytes(ours.run, how.device)
    try:
        taken = alternate(
            {"ours": ours.run, "dense": dense.run},
            rounds=how.rounds,
            at_least_s=how.at_least_s,
            device=how.device,
        )
    except torch.OutOfMemoryError:
        alone = alternate({"ours": ours.run}, rounds=how.rounds, at_least_s=how.at_least_s, device=how.device)
        taken = alone | {"dense": []}
    limited.timeline = recorder = Recorder()
    ours.run()
    limited.timeline = None
    plan = limited.plan(x, folded=True).plan
    remarks = [f"{recorder.hidden:.0%} hidden", f"P = {plan.num_intervals}"]
    remarks.append(f"planned {plan.peak_bytes / 2**20:.1f} of {plan.budget_bytes / 2**20:.1f} MiB")
    remarks += [] if peak is None else [f"measured {peak / 2**20:.1f} MiB"]
    remarks += ["1/8 cannot be met"] if plan.budget_bytes > wanted else []
    remarks += [] if taken["dense"] else ["P = 1 ran out of memory"]
    ratio = median_ratio(taken["ours"], taken["dense"]) if taken["dense"] else None
    return line(
        ours_s=median(taken["ours"]),
        theirs_s=median(taken["dense"]) if taken["dense"] else None,
        ratio=ratio,
        remarks=", ".join(remarks),
    )


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
