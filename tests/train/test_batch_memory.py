"""Memory of mini-batches: what is measured is what a step takes, and measuring changes nothing."""

from __future__ import annotations

import torch

from sagann.runtime.loading import MiniBatches
from sagann.train.batch_memory import MARGIN, measure_batches
from tests.train.runs import Plain, community_graph, predictor_of


def batches_of(batch_size: int, threads: int = 1) -> MiniBatches:
    return MiniBatches(community_graph(), fanouts=[4, 3], batch_size=batch_size, threads=threads, ahead=0)


def test_a_batch_takes_its_blocks_and_features() -> None:
    batches = batches_of(1000)
    (batch,) = batches.batches(1)
    found = measure_batches(predictor_of(), batches)
    # Float32 features, and int64 or int32 ids of edges in both orders.
    least = batch.features.nbytes + sum(4 * 4 * block.num_edges for block in batch.blocks)
    assert least < found.batch_bytes < 3 * MARGIN * least


def test_a_step_is_measured_as_it_trains_with_dropout() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3)
    )

    class Dropping(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, hops: object, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x[:30])

    model.eval()
    predictor = predictor_of(Dropping())
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found = measure_batches(predictor, batches_of(1000))
    # Rows before the norm, the dropped rows and what dropout multiplied by; twice the largest for gradients.
    assert found.step_bytes > MARGIN * (3 + 2) * 4 * 30 * 64
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert not any(module.training for module in model.modules())


def test_lazy_parameters_are_no_memory_of_a_step() -> None:
    class Lazy(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.LazyLinear(10_000), torch.nn.Linear(10_000, 3))

        def forward(self, hops: object, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x[:30])

    found = measure_batches(predictor_of(Lazy()), batches_of(1000))
    # The hidden rows and gradients of as many, but not the first weight, of 320 KB.
    assert found.step_bytes <= MARGIN * (3 * 4 * 30 * 10_000 + 50_000)
