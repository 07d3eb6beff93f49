"""Generated gathers against hand-written C++: ``python -m bench.kernels``. Prints a Markdown table.

Needs g++, and AVX2 or AVX-512, for the yardstick; users of sagann need none of these.
"""

from __future__ import annotations

from statistics import geometric_mean, median

import torch
from torch import Tensor

from bench.kernels.gathers import GATHERS, topology_of
from bench.kernels.yardstick import Yardstick
from bench.pages import head, parser_of, row
from bench.timing import alternate, median_ratio
from sagann.graph import Topology
from sagann.kernels.edge import cpu
from sagann.kernels.memory import empty

FEATURES = [32, 41, 128, 300, 602]
# Feature rows within and far beyond a last-level cache of 32 MiB.
SIZES = {"in cache": (8_000, 400_000), "out of cache": (400_000, 3_000_000)}


def main() -> None:
    rounds = parser_of(__doc__, {"rounds": 7}).parse_args().rounds
    print(head(["graph", "size", "gather", *(f"F = {width}" for width in FEATURES)], words=("size", "gather")))
    ratios = []
    for kind in ("uniform", "power law"):
        for size, (num_vertices, num_edges) in SIZES.items():
            topology = topology_of(kind, num_vertices, num_edges)
            for name in GATHERS:
                cells = [_measure(topology, name, width, rounds) for width in FEATURES]
                ratios += [ratio for ratio, _ in cells]
                shown = [f"{ratio:.2f} ({1e3 * seconds:.1f} ms)" for ratio, seconds in cells]
                print(row([kind, size, name.replace("_", " "), *shown]), flush=True)
    print(
        f"\nSpeed relative to the yardstick (1 = as fast): geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}."
    )
    print(f"{torch.get_num_threads()} threads; sagann's median time in parentheses.")


def _measure(topology: Topology, name: str, features: int, rounds: int) -> tuple[float, float]:
    """How many times as fast as the yardstick, and seconds."""
    gather = GATHERS[name](topology, features)
    yardstick = Yardstick(topology)

    def by_yardstick() -> Tensor:
        # Both take memory for their results at every call, as an epoch does, and from the same pool.
        results = [empty(form.shape, form.dtype) for form in gather.results]
        yardstick.run(name, *gather.yardstick, *results, num_features=features)
        return results[0]

    contestants = {"sagann": lambda: cpu.run(gather.function, topology, gather.arrays), "yardstick": by_yardstick}
    seconds = alternate(contestants, rounds=rounds, at_least_s=0.02)
    result, expected = cpu.run(gather.function, topology, gather.arrays)[0], by_yardstick()
    # What a hub's sum rounds to depends on how large it was on the way, which its other features tell.
    allowed = 1e-3 + 1e-4 * expected.abs().amax(-1, keepdim=True)
    assert bool(((result - expected).abs() <= allowed).all()), (
        f"{name} of {features} features is not the yardstick's"
    )
    return median_ratio(seconds["yardstick"], seconds["sagann"]), median(seconds["sagann"])


if __name__ == "__main__":
    main()
