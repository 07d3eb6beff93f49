"""BatchNorms of a streamed model, over vertices and over edges: results, gradients and running means are those of the model itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sagann
from sagann.errors import LayerError
from sagann.graph import Topology, declare_constant
from sagann.plan.selection import Selection
from sagann.runtime.moments import Groups, Moments
from sagann.runtime.streaming.stream import dense_bytes
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import labelled_graph
from tests.runtime.in_memory.test_batch_norm import OfEdges, OfVertices
from tests.runtime.streaming import norm_models as norms
from tests.runtime.streams import WIDE, partial_loss, tight
from tests.tolerances import largest


def numbers(model: nn.Module, loss: Tensor, x: Tensor) -> list[Tensor]:
    """A loss, its gradients, and the buffers after it."""
    gradients = torch.autograd.grad(loss, [x, *model.parameters()], materialize_grads=True)
    return [loss.detach(), *gradients, *(buffer.clone() for buffer in model.buffers())]


def assert_alike(found: Sequence[Tensor], expected: Sequence[Tensor], limit: float = 1e-11) -> None:
    scale = largest(*expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).abs().max()) <= limit * scale


def all_of(x: Tensor) -> slice:
    return slice(0, len(x))


@pytest.mark.parametrize("build", norms.MODELS)
def test_a_streamed_epoch_has_the_numbers_of_the_model(build: Callable[[int], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    hops, x = norms.given()
    n = len(x)
    model = build(x.shape[1]).double()
    hops = [hops[0]] * model.num_hops
    plain = copy.deepcopy(model)
    grids = [(None, (0, n)), (None, (0, 20, 21, n)), (WIDE, (0, 20, 21, n))]
    for number, (traversal, bounds) in enumerate(grids):
        streamed = tight(model, hops, x, bounds=bounds, spill=tmp_path, traversal=traversal)
        expected = numbers(plain, partial_loss(plain(hops, x), all_of(x)), x)
        folds = number % 2 == 0
        loss = streamed.loss(x, partial_loss) if folds else partial_loss(streamed(x), all_of(x))
        assert_alike(numbers(model, loss, x), expected)
        streamed.close()
    model.eval(), plain.eval()
    with torch.no_grad():
        expected = [plain(hops, x), *plain.buffers()]
        assert_alike([StreamedModel(model, hops, (0, 20, 21, n))(x), *model.buffers()], expected)


def test_rows_that_are_picked_and_constant_features() -> None:
    torch.manual_seed(0)
    hops, x = norms.given()
    x = declare_constant(x.detach())
    model: Any = norms.Stack(norms.OfOneEnd, x.shape[1]).double()
    plain = copy.deepcopy(model)
    streamed = StreamedModel(
        model, hops, (0, 9, 18, 27, 36, len(x)), budget_bytes=1 << 20, selection=Selection(share=0.95)
    )
    for _ in range(2):
        expected = partial_loss(plain(hops, x), all_of(x))
        found = streamed.loss(x, partial_loss)
        gradients = [
            torch.autograd.grad(loss, [*of.parameters()]) for loss, of in ((found, model), (expected, plain))
        ]
        assert_alike(
            [found.detach(), *gradients[0], *model.buffers()], [expected.detach(), *gradients[1], *plain.buffers()]
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_means_are_computed_in_single_precision_at_least(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hops, x = norms.given(dtype)
    model = norms.Stack(OfEdges, x.shape[1]).to(dtype)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(hops, x.double())
        expected = copy.deepcopy(model)(hops, x)
        found = StreamedModel(model, hops, (0, 11, len(x)))(x)
    assert found.dtype == expected.dtype
    assert float((found - exact).norm()) < 2 * float((expected - exact).norm())


class Shared(nn.Module):
    """One norm over edges, over the vertices of a layer and between layers; and one that is called twice with the same rows."""

    num_hops = 2

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.first, self.second = OfEdges(in_dim, 5), OfVertices(5, 5)
        self.second.norm = self.first.norm
        self.twice = nn.BatchNorm1d(5)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        x = self.second(hops[1], self.first(hops[0], x))
        x = self.first.norm(torch.tanh(x))
        return self.twice(x) * self.twice(x)


def test_a_norm_that_is_called_in_several_places() -> None:
    torch.manual_seed(0)
    hops, x = norms.given()
    model = Shared(x.shape[1]).double()
    plain = copy.deepcopy(model)
    expected = numbers(plain, partial_loss(plain(hops, x), all_of(x)), x)
    assert_alike(numbers(model, StreamedModel(model, hops, (0, 11, len(x))).loss(x, partial_loss), x), expected)


def test_a_single_edge_is_refused() -> None:
    hops = [Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=5)] * 2
    with pytest.raises(LayerError, match="a BatchNorm that is trained needs two rows at least"):
        StreamedModel(norms.Stack(OfEdges, 6), hops, (0, 2, 5))(torch.randn(5, 6))


class Unused(sagann.SagaLayer):
    """Calls a norm on the edges or on the vertices, and reads nothing of its result."""

    def __init__(self, at: str, width: int) -> None:
        super().__init__()
        self.at, self.norm = at, nn.BatchNorm1d(width)

    def apply_edge(self, edge: Any) -> Tensor:
        if self.at == "edge":
            self.norm(edge.src)
        return 2 * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        if self.at == "vertex":
            self.norm(vertex)
        return accum


class OfOne(nn.Module):
    """A model of one layer, which may call a norm, or its layer once more, and read nothing of the result."""

    def __init__(self, at: str, width: int) -> None:
        super().__init__()
        self.at, self.norm, self.layer = at, nn.BatchNorm1d(width), Unused(at, width)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        if self.at == "model":
            self.norm(x)
        out = self.layer(hops[0], x)
        if self.at == "layer":
            self.layer(hops[0], self.norm(x))
        return out


@pytest.mark.parametrize("at", ["edge", "vertex", "model", "layer"])
def test_a_norm_whose_result_is_not_read_is_refused_where_its_means_would_move(at: str) -> None:
    hops, x = norms.given()
    model = OfOne(at, x.shape[1]).double()
    streamed = StreamedModel(model, hops[:1], (0, 11, len(x)))
    with pytest.raises(LayerError, match="nothing reads the result of the BatchNorm1d 'norm', which is trained"):
        streamed(x)
    # Nothing moves in evaluation, nor where there are no running means. Inside a layer, other checks refuse these.
    model.eval()
    expected = model(hops[:1], x)
    assert_alike([streamed(x).detach()], [expected.detach()])
    model.train()
    if at in ("model", "layer"):
        model.norm = nn.BatchNorm1d(x.shape[1], track_running_stats=False).double()
        assert_alike([streamed(x).detach()], [expected.detach()])


def test_the_memory_of_a_run_in_memory_counts_tensors_of_edges() -> None:
    graph = replace(labelled_graph(types=norms.NUM_TYPES), splits={})
    for kind in (OfEdges, norms.OfTypes):
        model = norms.Stack(kind, 8)
        training, evaluation = (dense_bytes(model, graph, trains=trains) for trains in (True, False))
        assert training - evaluation > 2 * 4 * 8 * graph.num_edges


def test_moments_of_groups_with_large_means_lose_nothing() -> None:
    rows = torch.randn(1000, 3, 2, generator=torch.Generator().manual_seed(0)) + 3000
    moments = Moments(rows, eps=0.0)
    sizes = [0, 1, 500, 0, 7, 492]
    parts = []
    for part in rows.split(sizes):
        spread = (part.double() - part.double().mean(0)).square().sum(0).float() if len(part) else torch.zeros(3, 2)
        parts.append(torch.cat([torch.cat([part.sum(0), spread], 1).flatten(), torch.tensor([float(len(part))])]))
    for gathered in torch.stack(parts).split(4):
        moments.add_groups(Groups(rows=gathered, shape=(3, 2)))
    expected = rows.double().transpose(1, 2).flatten(0, 1)
    mean, deviation = moments.shared()
    assert moments.count == 2000
    torch.testing.assert_close(mean.double(), expected.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(deviation.double(), 1 / expected.std(0, correction=0), rtol=1e-5, atol=0)


def test_norms_in_training_move_their_running_means_without_gradients_too() -> None:
    torch.manual_seed(0)
    hops, x = norms.given(num_hops=3)
    model = norms.Between(x.shape[1]).double()
    plain = copy.deepcopy(model)
    streamed = StreamedModel(model, hops, (0, 11, len(x)), trains=False)
    with torch.no_grad():
        assert_alike([streamed(x), *model.buffers()], [plain(hops, x), *plain.buffers()])
        model.eval(), plain.eval()
        before = [buffer.clone() for buffer in model.buffers()]
        assert_alike([streamed(x), *model.buffers()], [plain(hops, x), *before])


def test_a_norm_of_another_width_is_refused() -> None:
    hops, x = norms.given()
    model = norms.OfHeads(x.shape[1]).double()
    model.norm = nn.BatchNorm1d(2, affine=False)
    with pytest.raises(LayerError, match="a BatchNorm of 2 features got 3"):
        StreamedModel(model, hops[:1], (0, 11, len(x)))(x)


class Doubled(nn.BatchNorm1d):
    """It does more than a BatchNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_norm_with_a_forward_of_its_own_is_refused_and_streams_in_evaluation() -> None:
    hops, x = norms.given()
    between, inside = norms.Between(x.shape[1]).double(), norms.OfAllKinds(x.shape[1]).double()
    between.norms[0], inside.inner.norm = Doubled(norms.WIDTH).double(), Doubled(6).double()
    for model in (between, inside):
        hops = [hops[0]] * model.num_hops
        with pytest.raises(LayerError, match=r"the Doubled '.*', which is trained, has a forward of its own"):
            StreamedModel(model, hops, (0, 11, len(x)))(x)
        model.eval()
        expected = model(hops, x)
        assert_alike([StreamedModel(model, hops, (0, 11, len(x)))(x).detach()], [expected.detach()])


def test_a_single_row_is_refused() -> None:
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([0]), num_src=1)
    model = norms.Between(4)
    with pytest.raises(LayerError, match="a BatchNorm that is trained needs two rows at least"):
        StreamedModel(model, [topology] * 3, (0, 1))(torch.randn(1, 4))
