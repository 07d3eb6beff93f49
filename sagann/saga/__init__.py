"""The programming model: SAGA layers, edges, accumulators; and the engines that run layers."""

from sagann.kernels.accumulators import ACCUMULATORS
from sagann.saga.edge import Edge
from sagann.saga.engine import Engine, NaiveEngine, current_engine, set_engine, using_engine
from sagann.saga.layer import SagaLayer

__all__ = [
    "ACCUMULATORS",
    "Edge",
    "Engine",
    "NaiveEngine",
    "SagaLayer",
    "current_engine",
    "set_engine",
    "using_engine",
]
