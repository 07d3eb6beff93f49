"""sagann trains graph neural networks on graphs larger than the memory of the device that computes.

Write a layer (:class:`SagaLayer`) or take one of the zoo (:mod:`sagann.nn`), open a graph (:func:`load_graph`),
train it (:class:`Trainer`). Names are imported when they are first used, so ``import sagann`` is fast.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sagann.registry import DEFAULTS, import_lazily

if TYPE_CHECKING:
    from sagann import (
        errors as errors,
        graph as graph,
        interop as interop,
        nn as nn,
        partition as partition,
        sampling as sampling,
        storage as storage,
        tiering as tiering,
        train as train,
    )
    from sagann.errors import (
        CheckpointError as CheckpointError,
        DatasetError as DatasetError,
        InputError as InputError,
        LayerError as LayerError,
        SagannError as SagannError,
    )
    from sagann.graph import Graph as Graph, Topology as Topology
    from sagann.interop import load_dataset as load_dataset
    from sagann.kernels.dense import typed_linear as typed_linear
    from sagann.nn import GNN as GNN, ModelConfig as ModelConfig, build_model as build_model
    from sagann.runtime.loading import GraphBatches as GraphBatches, MiniBatches as MiniBatches
    from sagann.runtime.streaming.stream import stream as stream
    from sagann.saga import Edge as Edge, SagaLayer as SagaLayer
    from sagann.storage import load_graph as load_graph, open_graph as open_graph, save_graph as save_graph
    from sagann.train import TrainConfig as TrainConfig, Trainer as Trainer, load_run as load_run

# PyTorch asks for huge pages for large tensors on the CPU where this is set before its first tensor is made: their
# pages, made anew when a tensor is, cost a good part of an epoch.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"

DEFAULTS["engine"] = "sagann.runtime.in_memory.engine:CompiledEngine"
DEFAULTS["model names"] = "sagann.nn.zoo:check_names"
DEFAULTS["training names"] = "sagann.train.policies:check_names"
DEFAULTS["progress"] = "sagann.report.progress:live_progress"

_MODULES = ("errors", "graph", "interop", "nn", "partition", "sampling", "storage", "tiering", "train")
"""Modules that are there after ``import sagann``, and imported when they are first used."""

__all__ = [
    "__version__",
    *import_lazily(
        __name__,
        {
            "errors": "CheckpointError DatasetError InputError LayerError SagannError",
            "graph": "Graph Topology",
            "interop": "load_dataset",
            "kernels.dense": "typed_linear",
            "nn": "GNN ModelConfig build_model",
            "runtime.loading": "GraphBatches MiniBatches",
            "runtime.streaming.stream": "stream",
            "saga": "Edge SagaLayer",
            "storage": "load_graph open_graph save_graph",
            "train": "TrainConfig Trainer load_run",
        },
        modules=_MODULES,
    ),
]
