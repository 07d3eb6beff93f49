"""Generated gathers on a CUDA device, against its copy bandwidth and against PyG: ``python -m bench.kernels.cuda``.

Prints one Markdown table. "of copy" is the least traffic of a gather that keeps no row in a cache (a source row for
every edge, a destination's row and result once) over the time, relative to what copying a large tensor reaches; a
cache, or sources that repeat, can bring it above 1. PyG's column is the faster of what its layers do without
extensions: ``torch.sparse`` where the gather is a product with a matrix, else rows for every edge and a segmented or
scattered reduction. Every contestant is checked first, then timed in alternation by the device's own clock.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor
from torch_geometric.utils import scatter, segment, softmax

from bench.kernels.gathers import GATHERS, Gather
from bench.kernels.graphs import topology_of
from sagann.graph import Topology
from sagann.kernels.dialects import dialect_for
from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction

Run = Callable[[], Tensor]
# Checked on the first destinations: the naive way needs a row for every edge and value.
CHECKED_EDGES = 1 << 18


def run_on_device(function: EdgeFunction, topology: Topology, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Run an edge function's kernel on the topology's device."""
    return dialect_for(topology.device.type).run(function, topology, arrays)


def main() -> int:
    """Time every gather on every graph and width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=float, default=2e6, help="default 2e6")
    parser.add_argument("--edges", type=float, default=40e6, help="default 40e6")
    parser.add_argument("--features", type=int, nargs="+", default=[32, 128, 300])
    parser.add_argument("--only", nargs="+", choices=list(GATHERS), default=list(GATHERS))
    parser.add_argument("--repetitions", type=int, default=11)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("No CUDA device is visible to PyTorch, so there is nothing to measure.\n")
        return 1
    copy_bytes_per_s = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}; ")
    print(f"copying reaches {copy_bytes_per_s / 1e9:.0f} GB/s (read and written). ", end="")
    print(f"{arguments.vertices:,.0f} vertices, {arguments.edges:,.0f} edges, float32.\n")
    print("| graph | gather | features | sagann ms | G edges/s | GB/s | of copy | PyG ms | PyG / sagann |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for kind in ("uniform", "power law"):
        topology = topology_of(kind, int(arguments.vertices), int(arguments.edges))
        on_device = topology.to("cuda")
        for name in arguments.only:
            for features in arguments.features:
                torch.manual_seed(0)
                gather = GATHERS[name](topology, features)
                row = measure(name, gather, on_device, arguments.repetitions, copy_bytes_per_s)
                print(f"| {kind} | {name.replace('_', ' ')} | {features} | {row} |", flush=True)
    return 0


def measure(name: str, gather: Gather, topology: Topology, repetitions: int, copy_bytes_per_s: float) -> str:
    """The cells of one gather."""
    arrays = {key: array.to("cuda") for key, array in gather.arrays.items()}
    check(gather, topology, arrays)
    seconds, peers = {}, peers_of(name, topology, arrays)
    ours: Run = lambda: run_on_device(gather.function, topology, arrays)[0]  # noqa: E731
    expected = ours()
    usable = {"sagann": ours}
    for peer, run in peers.items():
        try:
            torch.testing.assert_close(run(), expected, rtol=1e-3, atol=1e-3)
            usable[peer] = run
        except torch.OutOfMemoryError:
            continue
        finally:
            torch.cuda.empty_cache()
    seconds = alternate_on_device(usable, repetitions)
    own = seconds.pop("sagann")
    rate = traffic_bytes(gather, topology, arrays) / own
    best = min(seconds, key=seconds.__getitem__, default=None)
    cells = [f"{own * 1e3:.3f}", f"{topology.num_edges / own / 1e9:.2f}", f"{rate / 1e9:.0f}"]
    cells.append(f"{rate / copy_bytes_per_s:.2f}")
    cells += (
        ["out of memory", ""]
        if best is None
        else [f"{seconds[best] * 1e3:.3f} ({best})", f"{seconds[best] / own:.1f}"]
    )
    return " | ".join(cells)


def check(gather: Gather, topology: Topology, arrays: Mapping[str, Tensor]) -> None:
    """Compare with plain PyTorch in float64 on the first destinations."""
    rows = int(torch.searchsorted(topology.indptr, CHECKED_EDGES, right=True)) - 1
    rows = max(1, min(rows, topology.num_dst))
    last = int(topology.indptr[rows])
    part = Topology(
        indptr=topology.indptr[: rows + 1].cpu(),
        indices=topology.indices[:last].cpu(),
        num_src=topology.num_src,
        validate=False,
    )
    counts = {"src": topology.num_src, "dst": rows, "edge": last}
    exact = {
        given.name: gather.arrays[given.name][: counts[given.side]].double() for given in gather.function.inputs
    }
    expected = naive.run(gather.function, part, exact)[0]
    actual = run_on_device(gather.function, topology, arrays)[0][:rows]
    torch.testing.assert_close(actual.double().cpu(), expected, rtol=1e-4, atol=1e-4)


def peers_of(name: str, topology: Topology, arrays: Mapping[str, Tensor]) -> dict[str, Run]:
    """The same by PyG's means, by name."""
    src, dst, indptr = topology.indices.long(), topology.edge_dst().long(), topology.indptr
    num_dst, x = topology.num_dst, arrays["x"]

    def reduced(rows: Callable[[], Tensor], reduce: str) -> dict[str, Run]:
        return {
            "segment": lambda: segment(rows(), indptr, reduce=reduce),
            "scatter": lambda: scatter(rows(), dst, dim_size=num_dst, reduce=reduce),
        }

    if name in ("sum", "weighted_sum"):
        weight = arrays.get("w", torch.ones(topology.num_edges, device=x.device))
        size = (num_dst, topology.num_src)
        matrix = torch.sparse_csr_tensor(indptr, src, weight, size=size, check_invariants=False)
        rows = (lambda: x[src]) if name == "sum" else (lambda: x[src] * weight[:, None])
        return {"torch.sparse": lambda: matrix @ x, **reduced(rows, "sum")}
    if name == "max":
        return reduced(lambda: x[src], "max")
    a, b = arrays["a"], arrays["b"]
    if name == "gated":
        return reduced(lambda: torch.sigmoid(a[dst] + b[src]) * x[src], "sum")

    def weighted() -> Tensor:
        score = torch.nn.functional.leaky_relu(a[dst] + b[src], 0.2)
        return softmax(score, ptr=indptr)[:, None] * x[src]

    return reduced(weighted, "sum")


def traffic_bytes(gather: Gather, topology: Topology, arrays: Mapping[str, Tensor]) -> int:
    """Bytes that a gather moves when no row stays in a cache."""
    rows = {"src": topology.num_edges, "edge": topology.num_edges, "dst": topology.num_dst}
    total = topology.indices.numel() * topology.indices.element_size() + topology.indptr.numel() * 8
    for given in gather.function.inputs:
        total += rows[given.side] * arrays[given.name][0].numel() * arrays[given.name].element_size()
    return total + sum(
        result.numel() * result.element_size() for result in run_on_device(gather.function, topology, arrays)
    )


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of copying 2 GiB."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    seconds = alternate_on_device({"copy": lambda: target.copy_(source)}, 11)["copy"]
    return 2 * source.numel() * source.element_size() / seconds


def alternate_on_device(contestants: Mapping[str, Run], repetitions: int) -> dict[str, float]:
    """Median seconds of each, by the device's clock, after two runs to warm up."""
    for run in contestants.values():
        run()
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions):
        for name, run in contestants.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            seconds[name].append(begin.elapsed_time(end) / 1e3)
    return {name: median(several) for name, several in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
