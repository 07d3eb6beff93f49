"""One name for each place: edge functions that differ in names alone have one source, and are compiled once.

Names come from the models that people write: of their arguments and submodules, or of the operators that a capture found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sagann.kernels.edge.function import EdgeFunction


def canonical_names(function: EdgeFunction) -> Mapping[str, str]:
    """For each value of a function, a name that states its side or its operation, and its place."""
    sides = [given.side for given in function.inputs]
    kinds = [op.op for op in function.ops]
    return {
        value.name: f"{kind}_{place}"
        for place, (value, kind) in enumerate(zip(function.values, [*sides, *kinds], strict=True))
    }


def renamed(function: EdgeFunction, names: Mapping[str, str]) -> EdgeFunction:
    """The function with other names for its values, by their present names."""
    return replace(
        function,
        inputs=tuple(replace(given, name=names[given.name]) for given in function.inputs),
        ops=tuple(
            replace(
                op,
                name=names[op.name],
                args=tuple(names[arg] if isinstance(arg, str) else arg for arg in op.args),
            )
            for op in function.ops
        ),
        outputs=tuple(
            replace(output, values=tuple(names[value] for value in output.values)) for output in function.outputs
        ),
    )
