"""BatchNorms of a streamed model: results, gradients and running means are those of the model itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import LayerError
from sagann.graph import Topology
from sagann.nn import GAT, SAGE
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import labelled_graph
from tests.runtime.in_memory.test_batch_norm import OfVertices
from tests.runtime.streams import in_double, partial_loss
from tests.tolerances import largest

WIDTH = 8


class Between(nn.Module):
    """BatchNorms between layers, as most models have them, with dropout and a residual connection."""

    num_hops = 3

    def __init__(self, in_dim: int, p: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGE(in_dim, WIDTH), SAGE(WIDTH, WIDTH), SAGE(WIDTH, 3)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, momentum=None)])
        self.dropout = nn.Dropout(p)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.layers[0](hops[0], x)))
        x = x + self.dropout(torch.relu(self.norms[1](self.layers[1](hops[1], x))))
        return self.layers[2](hops[2], x)


class OfAllKinds(nn.Module):
    """One norm of features and of the result, one of rows that are read without it too, and one inside a layer."""

    num_hops = 2

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.given = nn.BatchNorm1d(in_dim, affine=False)
        self.inner = OfVertices(in_dim, 6)
        self.middle = nn.BatchNorm1d(6, track_running_stats=False)
        self.last, self.out = GAT(12, 2, num_heads=2), nn.BatchNorm1d(4, eps=0.1)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        x = torch.tanh(self.inner(hops[0], self.given(x)))
        return self.out(self.last(hops[1], torch.cat([x, self.middle(x)], 1)))


class OfHeads(nn.Module):
    """A norm of rows with two dimensions, which is used twice."""

    num_hops = 1

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.layer, self.norm = SAGE(in_dim, 6), nn.BatchNorm1d(3)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        rows = self.layer(hops[0], x).view(-1, 3, 2)
        return self.norm(torch.exp(self.norm(rows))).flatten(1)


MODELS = {"between": Between, "of all kinds": OfAllKinds, "of heads": OfHeads}


def numbers(model: nn.Module, loss: Tensor, x: Tensor) -> list[Tensor]:
    """A loss, its gradients, and the buffers after it."""
    gradients = torch.autograd.grad(loss, [x, *model.parameters()], materialize_grads=True)
    return [loss.detach(), *gradients, *(buffer.clone() for buffer in model.buffers())]


def given(dtype: torch.dtype = torch.float64) -> tuple[list[Topology], Tensor]:
    graph = in_double(labelled_graph())
    assert graph.features is not None
    return graph.hops(3), (3 + graph.features.to(dtype)).requires_grad_()


def assert_alike(found: Sequence[Tensor], expected: Sequence[Tensor], limit: float = 1e-11) -> None:
    scale = largest(*expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).abs().max()) <= limit * scale


def test_dropout_beside_norms_is_the_same_for_all_intervals() -> None:
    torch.manual_seed(0)
    hops, x = given()
    model = Between(x.shape[1], p=0.5).double()
    found = []
    for bounds in ((0, 53), (0, 11, 53)):
        copied = copy.deepcopy(model)
        torch.manual_seed(1)
        found.append(numbers(copied, StreamedModel(copied, hops, bounds).loss(x, partial_loss), x))
    assert_alike(*found)
    assert float((found[0][0] - partial_loss(model(hops, x), slice(0, 53))).detach().abs()) > 1


def test_norms_in_training_move_their_running_means_without_gradients_too() -> None:
    torch.manual_seed(0)
    hops, x = given()
    model = Between(x.shape[1]).double()
    plain = copy.deepcopy(model)
    streamed = StreamedModel(model, hops, (0, 11, 53), trains=False)
    with torch.no_grad():
        assert_alike([streamed(x), *model.buffers()], [plain(hops, x), *plain.buffers()])
        model.eval(), plain.eval()
        before = [buffer.clone() for buffer in model.buffers()]
        assert_alike([streamed(x), *model.buffers()], [plain(hops, x), *before])


def test_a_norm_of_another_width_is_refused() -> None:
    hops, x = given()
    model = OfHeads(x.shape[1]).double()
    model.norm = nn.BatchNorm1d(2, affine=False)
    with pytest.raises(LayerError, match="a BatchNorm of 2 features got 3"):
        StreamedModel(model, hops[:1], (0, 11, 53))(x)


class Doubled(nn.BatchNorm1d):
    """It does more than a BatchNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_norm_with_a_forward_of_its_own_is_refused_and_streams_in_evaluation() -> None:
    hops, x = given()
    between, inside = Between(x.shape[1]).double(), OfAllKinds(x.shape[1]).double()
    between.norms[0], inside.inner.norm = Doubled(WIDTH).double(), Doubled(6).double()
    for model in (between, inside):
        with pytest.raises(LayerError, match=r"the Doubled '.*', which is trained, has a forward of its own"):
            StreamedModel(model, hops[: model.num_hops], (0, 11, 53))(x)
        model.eval()
        expected = model(hops[: model.num_hops], x)
        assert_alike([StreamedModel(model, hops[: model.num_hops], (0, 11, 53))(x).detach()], [expected.detach()])


def test_a_single_row_is_refused() -> None:
    topology = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([0]), num_src=1)
    model = Between(4)
    with pytest.raises(LayerError, match="a BatchNorm that is trained needs two rows at least"):
        StreamedModel(model, [topology] * 3, (0, 1))(torch.randn(1, 4))
