"""The programming model: SAGA layers, edges, accumulators."""

from sagann.saga.accumulator import ACCUMULATORS
from sagann.saga.edge import Edge
from sagann.saga.layer import SagaLayer

__all__ = ["ACCUMULATORS", "Edge", "SagaLayer"]
