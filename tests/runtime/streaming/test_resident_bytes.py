"""What a streamed epoch keeps for its backward takes the bytes that the plan counts: no view of something larger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.nn import GAT, GNN
from sagann.plan import equal_vertices
from sagann.plan.steps import Block
from sagann.runtime.blocks.residents import Residents
from tests.graphs import random_topology
from tests.runtime.streams import tight

NUM_VERTICES = 6000


@pytest.mark.parametrize("on_disk", [False, True])
def test_no_block_of_attention_holds_a_larger_piece_of_memory(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, list[tuple[Block, Tensor]]] = {}
    keep = Residents.__setitem__

    def noted(residents: Residents, block: Block, value: Any) -> None:
        tensors = {"": value} if isinstance(value, Tensor) else value
        if isinstance(tensors, Mapping):
            kept.setdefault(block.kind, []).extend((block, tensor) for tensor in tensors.values())
            for tensor in tensors.values():
                # Small pieces of memory are rounded up to a word of the processor's caches, large ones by an eighth.
                assert tensor.untyped_storage().nbytes() <= 1.125 * tensor.nbytes + 64, block
        keep(residents, block, value)

    topology, x = random_topology(NUM_VERTICES, 20_000), torch.randn(NUM_VERTICES, 4)
    model = GNN([GAT(4, 16, num_heads=4), GAT(64, 16, num_heads=4)])
    spill, bounds = tmp_path if on_disk else None, equal_vertices(NUM_VERTICES, 2)
    streamed = tight(model, [topology] * 2, x, "column", bounds=bounds, spill=spill)
    with monkeypatch.context() as patches:
        patches.setattr(Residents, "__setitem__", noted)
        streamed.loss(x, lambda z, vertices: z.square().sum()).backward()
    assert {"value", "grad", "gather_saved", "grad_inputs"} <= kept.keys()
