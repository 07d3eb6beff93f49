"""Aggregations of PyTorch Geometric as accumulators: what is gathered for them, and what is computed of it.

Aggregations by a name, or several of them side by side, are accumulators of the same name. Two need more:

- ``SoftmaxAggregation`` weighs messages by the softmax of themselves, column by column: the softmax accumulator, with a score for each column;
- ``DegreeScalerAggregation`` multiplies what several aggregations give by functions of the degree, which is the sum of a one for each edge.

References:
    Corso et al., Principal Neighbourhood Aggregation for Graph Nets, NeurIPS 2020, Eq. 5-8. Li et al., DeeperGCN, 2020, Eq. 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sagann.errors import LayerError

_NAMES = {
    "SumAggregation": "sum",
    "MeanAggregation": "mean",
    "MaxAggregation": "max",
    "MinAggregation": "min",
    "MulAggregation": "mul",
    "VarAggregation": "var",
    "StdAggregation": "std",
}
"Accumulators, by the names of PyG's aggregations."
_SCALERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "amplification": lambda degree, known: torch.log(degree + 1) / known.avg_deg_log,
    "attenuation": lambda degree, known: known.avg_deg_log / torch.log(degree.clamp(min=1) + 1),
    "linear": lambda degree, known: degree / known.avg_deg_lin,
    "inverse_linear": lambda degree, known: known.avg_deg_lin / degree.clamp(min=1),
}
"Factors by the degree, which the aggregation's averages scale; 'identity' has none."


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation whose name is an accumulator's, or several of them side by side."""

    accumulator: Any

    def messages(self, message: Tensor, module: Any) -> Any:
        """What ApplyEdge returns for the messages [num_edges, ...] of the aggregation ``module``."""
        return message

    def finished(self, accum: Any, module: Any) -> Tensor:
        """What the aggregation gives, of what was gathered."""
        result: Tensor = accum
        return result


class _Scaled(Aggregation):
    __slots__ = ()

    def messages(self, message: Tensor, module: Any) -> Any:
        one = torch.ones_like(message[(slice(None), *[slice(1)] * (message.ndim - 1))])
        return {"rows": message, "degree": one}

    def finished(self, accum: Any, module: Any) -> Tensor:
        rows, degree = accum["rows"], accum["degree"]
        scaled = [rows if name == "identity" else rows * _SCALERS[name](degree, module) for name in module.scaler]
        return torch.cat(scaled, dim=-1)


def aggregation_of(conv: Any) -> Aggregation:
    """What gathers as the layer's aggregation does.

    Raises:
        LayerError: nothing does.
    """
    module = conv.aggr_module
    kind = type(module).__name__
    if kind == "SoftmaxAggregation":
        return Aggregation("softmax")
    if kind == "DegreeScalerAggregation":
        if unknown := set(module.scaler) - {"identity", *_SCALERS}:
            raise _not_known(conv, f"scalers {', '.join(sorted(unknown))}")
        names = _names_of(module.aggr, conv)
        return _Scaled({"rows": names, "degree": "sum"})
    return Aggregation(_names_of(module, conv))


def _names_of(module: nn.Module, conv: nn.Module) -> Any:
    several: Any = getattr(module, "aggrs", None)
    names = tuple(_NAMES.get(type(each).__name__) for each in several or [module])
    if None in names or getattr(module, "mode", "cat") != "cat":
        raise _not_known(conv, f"aggr = {' '.join(str(module).split())}")
    return names if several else names[0]


def _not_known(conv: nn.Module, found: str) -> LayerError:
    return LayerError(
        f"a layer of PyTorch Geometric gathers in a way that is not known: {found}, expected "
        f"{', '.join(_NAMES.values())}, or a list of these (in layer {type(conv).__name__})",
        hint="Name one of these, or write the layer as sagann.SagaLayer.",
    )
