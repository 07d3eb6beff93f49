"""LastInput: a model that stops at the input of its last SAGA layer, or its last layer of PyTorch Geometric, for embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.kernels.feature_rows import FeatureRows
from sagann.saga.engine import EdgeData, Engine, VertexRows, current_engine, using_engine
from sagann.saga.layer import SagaLayer


class LastInput(nn.Module):
    """Runs a model, and returns the input of the SAGA layer that ran last, in whatever order the layers were registered.

    LastInput is traced and streamed as any model: a trace leaves out operators that only the model's own output needs. It runs while
    the model is in evaluation mode.
    """

    def __init__(self, model: nn.Module, num_hops: int) -> None:
        super().__init__()
        self.model = model
        self.num_hops = num_hops
        # In another mode than the model's, the model would be traced anew.
        self.training = False

    def forward(self, hops: Sequence[Topology], x: Tensor, *more: Tensor) -> Tensor:
        """Dense rows [num_vertices, F]. Where the layer reads several tensors, their rows stand side by side.

        ``more`` are further arguments of the model.
        """
        engine = _Noting(current_engine())
        with using_engine(engine):
            self.model(hops, x, *more)
        if engine.x is None:
            raise LayerError(
                f"embed needs a SAGA layer: the model ran no SagaLayer (in model {type(self.model).__name__})",
                hint="Write the model's layers as subclasses of sagann.SagaLayer; an embedding is the last one's input.",
            )
        dense = [rows.dense() if isinstance(rows, FeatureRows) else rows for rows in engine.x.values()]
        return dense[0] if len(dense) == 1 else torch.cat([rows.flatten(1) for rows in dense], -1)


class _Noting(Engine):
    """An engine that passes layers on to another engine, and notes their input."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.x: VertexRows | None = None
        "Input of the last layer so far."

    def note_input(self, x: Tensor) -> None:
        self.x = {"": x}

    def run(self, layer: SagaLayer, topology: Topology, x: VertexRows, data: EdgeData) -> Tensor:
        # Imported here: training runs no model for its embeddings.
        from sagann.interop.pyg_layer import PygLayer

        # The input of a layer of PyG is noted, and not that of the SAGA layers that it runs.
        if not isinstance(layer, PygLayer):
            self.x = x
        return self._engine.run(layer, topology, x, data)

    def maps_features(self, layer: SagaLayer, x: FeatureRows, data: EdgeData) -> bool:
        return self._engine.maps_features(layer, x, data)
