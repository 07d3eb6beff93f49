"""Linear maps by blocks against PyTorch's own: ``python -m bench.dense``. Prints a Markdown table.

Rows as many as Reddit's vertices, and a fifth of them; widths of first, middle and last layers. Memory for results is
taken at every call: PyTorch's from the system, sagann's from its pool.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.timing import alternate, median_ratio
from sagann.kernels import dense

ROWS = [46_600, 233_000]
WIDTHS = [(602, 128), (500, 128), (128, 128), (128, 41)]
"Features in and out."
PASSES = {"forward": [], "and the weight's gradient": ["weight"], "and the input's too": ["weight", "x"]}
"Columns, and what needs a gradient."

Linear = Callable[[Tensor, Tensor], Tensor]


def main() -> None:
    """Time every pass over every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| rows | F | F out | " + " | ".join(PASSES) + " |")
    print("|--:|--:|--:|" + "--:|" * len(PASSES))
    for num_rows in arguments.rows:
        for width, out in WIDTHS:
            cells = [_measure(num_rows, width, out, wanted, arguments.repetitions) for wanted in PASSES.values()]
            shown = " | ".join(f"{ratio:.2f} ({1e3 * seconds:.1f} ms)" for ratio, seconds in cells)
            print(f"| {num_rows:,} | {width} | {out} | {shown} |", flush=True)
    print("\nSpeed relative to torch.nn.functional.linear (1 = as fast), median of rounds in alternation.")
    print(f"{torch.get_num_threads()} threads; sagann's median time in parentheses.")


def _measure(num_rows: int, width: int, out: int, wanted: list[str], repetitions: int) -> tuple[float, float]:
    """How many times as fast as PyTorch, and seconds."""
    generator = torch.Generator().manual_seed(0)
    drawn = {"x": (num_rows, width), "weight": (out, width), "upstream": (num_rows, out)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in drawn.items()}
    leaves = [tensors[name].requires_grad_() for name in wanted]

    def step(linear: Linear) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            result = linear(tensors["x"], tensors["weight"])
            return [result, *torch.autograd.grad(result, leaves, tensors["upstream"])] if leaves else [result]

        return run

    contestants = {"sagann": step(dense.linear), "pytorch": step(F.linear)}
    for ours, theirs in zip(*(run() for run in contestants.values()), strict=True):
        # Sums of thousands of numbers of either sign round to more than their own size would allow.
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.detach().abs().max()))
    seconds = alternate(contestants, repetitions=repetitions, at_least_s=0.02)
    return median_ratio(seconds["pytorch"], seconds["sagann"]), median(seconds["sagann"])


if __name__ == "__main__":
    main()
