"""Memory of mini-batches: what is measured is what a step takes, and measuring changes nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional as F

from sagann.runtime.loading import MiniBatches
from sagann.train.batch_memory import MARGIN, BatchMemory, measure_batches
from tests.train.runs import Plain, assert_same_bits, community_graph, predictor_of, seeded_model, weights_of


def batches_of(batch_size: int, threads: int = 1) -> MiniBatches:
    return MiniBatches(community_graph(), fanouts=[4, 3], batch_size=batch_size, threads=threads, ahead=0)


def test_a_batch_takes_its_blocks_and_features() -> None:
    batches = batches_of(1000)
    (batch,) = batches.batches(1)
    found = measure_batches(predictor_of(), batches)
    # Float32 features, and int64 or int32 ids of edges in both orders.
    least = batch.features.nbytes + sum(4 * 4 * block.num_edges for block in batch.blocks)
    assert least < found.batch_bytes < 3 * MARGIN * least


def test_a_step_takes_what_its_backward_pass_reads_again() -> None:
    rows, width = 30, 64
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))

    class Deep(Plain):
        def forward(self, hops: object, x: torch.Tensor) -> torch.Tensor:
            return model(x[:rows])

    predictor = predictor_of(Deep())
    found = measure_batches(predictor, batches_of(1000))
    # The rectified rows, which two operators keep, the features, which are the batch's, and the logits.
    kept = 4 * rows * width
    assert int(MARGIN * 3 * kept) <= found.step_bytes <= int(MARGIN * (3 * kept + 3 * 4 * rows * 3 + 5000))


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


def test_without_batches_ahead_two_of_them_meet() -> None:
    wide = BatchMemory(batch_bytes=100, step_bytes=50, thread_bytes=7)
    assert [wide.needed_bytes(ahead) for ahead in (0, 1)] == [207, 257]
    narrow = BatchMemory(batch_bytes=50, step_bytes=100, thread_bytes=7)
    assert [narrow.needed_bytes(ahead) for ahead in (0, 1)] == [157, 207]


def test_larger_batches_and_more_threads_take_more() -> None:
    small, large = (measure_batches(predictor_of(), batches_of(size)) for size in (3, 30))
    assert small.batch_bytes < large.batch_bytes
    assert small.step_bytes < large.step_bytes
    threads = measure_batches(predictor_of(), batches_of(30, threads=3))
    assert threads.thread_bytes == 3 * large.thread_bytes
    assert threads.needed_bytes(5) - threads.needed_bytes(4) == threads.batch_bytes


def test_a_batch_of_a_window_has_no_features() -> None:
    plain = measure_batches(predictor_of(), batches_of(30))
    with_window = measure_batches(predictor_of(), batches_of(30), has_window=True)
    assert 0 < with_window.window_bytes < plain.batch_bytes
    assert replace(with_window, window_bytes=0) == plain
    assert with_window.needed_bytes(3) == plain.needed_bytes(3) + 3 * with_window.window_bytes


def test_it_is_the_same_every_time_and_leaves_model_and_random_numbers_alone() -> None:
    class Drawing(Plain):
        def forward(self, hops: object, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(self.linear(x), 0.5)[:8]

    for model in (seeded_model(), Drawing()):
        predictor = predictor_of(model)
        model.train()
        before, state = weights_of(model), torch.get_rng_state()
        found = [measure_batches(predictor, batches_of(8)) for _ in range(2)]
        assert isinstance(found[0], BatchMemory)
        assert found[0] == found[1]
        assert_same_bits(before, weights_of(model))
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training
