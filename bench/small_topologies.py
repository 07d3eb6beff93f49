"""Layers on topologies that they have never seen, as mini-batches are: ``python -m bench.small_topologies``.

Forward and backward of one SAGE layer, 64 to 64 features, whose input needs a gradient, on a new topology at every call:
sagann's from arrays in CSC, as a sampler makes them, with out-edges and the division of work made anew; PyG's from a new
``edge_index``, as a plain tensor and as an ``EdgeIndex`` that is sorted by destination. Beside them the layer's two linear maps
alone, by PyTorch's autograd. In alternation, medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from bench.pages import head, parser_of, row
from sagann.graph import Topology
from sagann.nn import SAGE

FEATURES = 64
DEGREES = (5, 10)
SIZES = (200, 2_000, 20_000)
COLUMNS = "vertices | sagann, ms | PyG, edge_index, ms | PyG, EdgeIndex, ms | linear maps alone, ms | sagann / PyG | maps / PyG"


def main() -> None:
    options = parser_of(__doc__, {"threads": 2, "rounds": 60}).parse_args()
    torch.set_num_threads(options.threads)
    print(head(COLUMNS))
    for num_vertices in SIZES:
        ours, *pyg, maps = found = measure(num_vertices, options.rounds)
        cells = [f"{num_vertices:,}", *(f"{1e3 * each:.2f}" for each in found)]
        print(row([*cells, f"{ours / min(pyg):.2f}", f"{maps / min(pyg):.2f}"]), flush=True)


def measure(num_vertices: int, rounds: int) -> list[float]:
    """Median seconds of sagann, PyG with ``edge_index``, PyG with ``EdgeIndex``, and the linear maps alone."""
    from torch_geometric import EdgeIndex
    from torch_geometric.nn import SAGEConv

    ours = SAGE(FEATURES, FEATURES)
    theirs = SAGEConv(FEATURES, FEATURES)
    theirs.lin_l.load_state_dict(ours.neighbours.state_dict())
    theirs.lin_r.load_state_dict(ours.own.state_dict())

    def calls(seed: int) -> list[float]:
        """Seconds of a call of each contestant on a topology of its own."""
        indptr, indices = _random_topology(num_vertices, seed=seed)
        edge_index = torch.stack(
            [indices.long(), torch.repeat_interleave(torch.arange(num_vertices), indptr.diff())]
        )
        x = torch.randn(num_vertices, FEATURES, requires_grad=True)
        size = (num_vertices, num_vertices)
        results = [
            _timed(
                lambda: ours(Topology(indptr=indptr, indices=indices, num_src=size[0], validate=False), x), x, ours
            ),
            _timed(lambda: theirs(x, edge_index), x, theirs),
            _timed(lambda: theirs(x, EdgeIndex(edge_index, sparse_size=size, sort_order="col")), x, theirs),
            _timed(lambda: ours.own(x) + ours.neighbours(x), x, ours),
        ]
        for _, out in results[1:3]:
            torch.testing.assert_close(results[0][1], out, rtol=1e-4, atol=1e-5)
        return [seconds for seconds, _ in results]

    found = [calls(number) for number in range(rounds + 2)]
    return [median(seconds) for seconds in zip(*found[2:], strict=True)]


def _timed(run: Callable[[], Tensor], x: Tensor, model: nn.Module) -> tuple[float, Tensor]:
    x.grad = None
    model.zero_grad()
    begin = time.perf_counter()
    out = run()
    out.sum().backward()
    return time.perf_counter() - begin, out.detach()


def _random_topology(num_vertices: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Offsets and sources: 5 to 10 edges into each vertex, from any vertices."""
    generator = torch.Generator().manual_seed(seed)
    degrees = torch.randint(DEGREES[0], DEGREES[1] + 1, [num_vertices], generator=generator)
    indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
    indices = torch.randint(num_vertices, [int(indptr[-1])], generator=generator, dtype=torch.int32)
    return indptr, indices


if __name__ == "__main__":
    main()
