"""Maps by edge type before the gather or after it, forward and backward, against what the engine takes itself.

    python -m bench.typed_maps [--vertices 46600] [--edges 1.4e6] [--types 4] [--rounds 7] [--threads 2]

Prints one row per form: features in and out, whether the input is constant (a first layer's), bytes that each order
moves as the engine counts them, and median milliseconds of each, in alternation. A block has ten times as many
sources as destinations. "as written" maps every edge's row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from bench.timing import alternate
from sagann.compiler import CompilerOptions
from sagann.graph import Topology
from sagann.kernels.typed_linear import typed_linear
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.in_memory.typed_maps import moved_bytes
from sagann.saga import Edge, Engine, NaiveEngine, SagaLayer, using_engine


class Relational(SagaLayer):
    """The gather of GG-NN without its GRU, of any width."""

    accumulator = "sum"
    edge_data = "type"

    def __init__(self, dim_in: int, dim_out: int, num_types: int) -> None:
        super().__init__()
        self.maps = nn.Parameter(torch.randn(num_types, dim_in, dim_out))

    def apply_edge(self, edge: Edge) -> Tensor:
        """The source's row through the map of the edge's type."""
        return typed_linear(edge.src, edge.data, self.maps)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        """What was gathered."""
        return accum


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A row of the table."""

    name: str
    topology: Topology
    dim_in: int
    dim_out: int
    constant: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=46_600)
    parser.add_argument("--edges", type=lambda text: int(float(text)), default=1_400_000)
    parser.add_argument("--types", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    graph = drawn(args.vertices, args.vertices, args.edges, args.types)
    block = drawn(4 * args.vertices, 4 * args.vertices // 10, args.edges // 3, args.types)
    print(f"{'':6} {'F':>4} {'F out':>5} {'constant':>8} {'MB first':>8} {'last':>5}   milliseconds")
    for constant in (False, True):
        for name, topology, dim_in, dim_out in (
            ("graph", graph, 128, 128),
            ("graph", graph, 128, 32),
            ("graph", graph, 32, 128),
            ("block", block, 128, 128),
        ):
            case = Case(name=name, topology=topology, dim_in=dim_in, dim_out=dim_out, constant=constant)
            print(row(case, args.types, args.rounds), flush=True)


def drawn(num_src: int, num_dst: int, num_edges: int, num_types: int) -> Topology:
    """Edges drawn with a skew: low ids are hubs."""
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.rand(2, num_edges, generator=generator) ** 3
    types = torch.randint(num_types, (num_edges,), generator=generator)
    return Topology.from_coo(
        src=(src * num_src).long(),
        dst=(dst * num_dst).long(),
        num_src=num_src,
        num_dst=num_dst,
        edge_data={"type": types},
    )


def row(case: Case, num_types: int, rounds: int) -> str:
    """Bytes and times of one case."""
    topology, types = case.topology, case.topology.edge_data["type"]
    layer = Relational(case.dim_in, case.dim_out, num_types)
    x = torch.randn(topology.num_src, case.dim_in).requires_grad_(not case.constant)
    upstream = torch.randn(topology.num_dst, case.dim_out)
    taken = CompiledEngine()
    engines: dict[str, Engine] = {
        "first": CompiledEngine(options=CompilerOptions(typed_maps="first")),
        "last": CompiledEngine(options=CompilerOptions(typed_maps="last")),
        "taken": taken,
        "as written": NaiveEngine(),
    }

    def step(engine: Engine) -> Callable[[], None]:
        def run() -> None:
            with using_engine(engine):
                layer(topology, x).backward(upstream)

        return run

    seconds = alternate({name: step(engine) for name, engine in engines.items()}, repetitions=rounds)
    (program,) = taken.programs_of(layer)
    assert not isinstance(program, str)
    assert program.maps_last is not None
    first = moved_bytes(program, topology, types) / 1e6
    last = moved_bytes(program.maps_last, topology, types, kept=case.constant) / 1e6
    times = ", ".join(f"{name} {1000 * median(runs):.0f}" for name, runs in seconds.items())
    widths = f"{case.dim_in:4} {case.dim_out:5} {case.constant!s:>8}"
    return f"{case.name:6} {widths} {first:8.0f} {last:5.0f}   {times}"


if __name__ == "__main__":
    main()
