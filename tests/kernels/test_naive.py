"""Scatter, and every accumulator, against a loop over destinations: values and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Topology
from sagann.kernels import naive
from sagann.kernels.accumulators import gathering
from tests.graphs import block_of, odd_topologies, random_topology, skewed
from tests.tolerances import assert_close, assert_same_gradients

REDUCTIONS: dict[str, tuple[Callable[[Topology, Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sum": (naive.gather_sum, lambda rows: rows.sum(0)),
    "mean": (naive.gather_mean, lambda rows: rows.mean(0)),
    "max": (naive.gather_max, lambda rows: rows.amax(0)),
    "min": (naive.gather_min, lambda rows: rows.amin(0)),
}


def looped(topology: Topology, values: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    segments = values.split(topology.in_degrees().tolist())
    return torch.stack([reduce(rows) if len(rows) else rows.new_zeros(rows.shape[1:]) for rows in segments])


def looped_softmax(topology: Topology, score: Tensor, value: Tensor) -> Tensor:
    degrees = topology.in_degrees().tolist()
    out = []
    for scores, values in zip(score.split(degrees), value.split(degrees), strict=True):
        weight = torch.softmax(scores, 0)
        out.append((weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim)) * values).sum(0))
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(2, 3), ()])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", odd_topologies())
def test_reduction_equals_a_loop(name: str, reduction: str, shape: tuple[int, ...]) -> None:
    topology = odd_topologies()[name]
    gather, reduce = REDUCTIONS[reduction]
    values = torch.randn(topology.num_edges, *shape, dtype=torch.float64, requires_grad=True)
    assert_same_gradients(gather(topology, values), looped(topology, values, reduce), [values])


@pytest.mark.parametrize(("score_shape", "value_shape"), [((), (4,)), ((2,), (2, 3))])
@pytest.mark.parametrize("name", odd_topologies())
def test_softmax_equals_a_loop(name: str, score_shape: tuple[int, ...], value_shape: tuple[int, ...]) -> None:
    topology = odd_topologies()[name]
    score = torch.randn(topology.num_edges, *score_shape, dtype=torch.float64, requires_grad=True)
    value = torch.randn(topology.num_edges, *value_shape, dtype=torch.float64, requires_grad=True)
    actual = naive.gather_softmax(topology, score, value)
    assert_same_gradients(actual, looped_softmax(topology, score, value), [score, value])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_reach_their_destination_only(reduction: str, poison: float) -> None:
    topology = skewed()
    values = torch.randn(topology.num_edges, 3)
    values[0] = poison
    gather, reduce = REDUCTIONS[reduction]
    assert_close(gather(topology, values), looped(topology, values, reduce))


def star(num_edges: int) -> Topology:
    indices = torch.zeros(num_edges, dtype=torch.int32)
    return Topology(indptr=torch.tensor([0, num_edges]), indices=indices, num_src=1, validate=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    # 4096 ones: a float16 running sum stops at 2048, a bfloat16 one at 256.
    topology = star(4096)
    ones = torch.ones(4096, 1, dtype=dtype)
    for gather, expected in (
        (naive.gather_sum, 4096),
        (naive.gather_mean, 1),
        (naive.gather_max, 1),
        (naive.gather_min, 1),
        (lambda edges, rows: naive.gather_softmax(edges, rows[:, 0], rows), 1),
    ):
        gathered = gather(topology, ones)
        assert gathered.dtype == dtype
        assert gathered.tolist() == [[expected]]


@pytest.mark.parametrize(
    ("score_dtype", "value_dtype"), [(torch.float16, torch.float32), (torch.bfloat16, torch.float64)]
)
def test_half_precision_scores_are_added_up_in_float32(score_dtype: torch.dtype, value_dtype: torch.dtype) -> None:
    topology = star(4096)
    score = torch.zeros(4096, dtype=score_dtype)
    softmax = naive.gather_softmax(topology, score, torch.ones(4096, 1, dtype=value_dtype))
    assert softmax.dtype == value_dtype
    assert_close(softmax, torch.ones(1, 1, dtype=value_dtype))
    top, denominator = naive.gather_denominator(topology, score)
    assert_close(top, torch.zeros(1))
    assert_close(denominator, torch.tensor([4096.0]))


def test_the_first_of_tied_edges_gets_the_gradient() -> None:
    topology = Topology(indptr=torch.tensor([0, 1, 4, 4, 4]), indices=torch.tensor([0, 1, 2, 3]), num_src=4)
    values = torch.tensor([[1.0], [2.0], [2.0], [1.0]], requires_grad=True)
    best, edge = naive.gather_extremum(topology, values, "max")
    best.sum().backward()
    assert best.flatten().tolist() == [1, 2, 0, 0]
    assert edge.flatten().tolist() == [0, 1, -1, -1]
    assert values.grad.flatten().tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("accumulator", [*REDUCTIONS, "concat", "softmax"])
def test_gradients_of_gradients(accumulator: str) -> None:
    topology = random_topology(6, 20)
    values = torch.randn(topology.num_edges, 2, dtype=torch.float64, requires_grad=True)
    score = torch.randn(topology.num_edges, dtype=torch.float64, requires_grad=True)
    gather, inputs = {
        "softmax": (naive.gather_softmax, (score, values)),
        "concat": (lambda edges, rows: naive.gather_concat(edges, rows, 40), (values,)),
    }.get(accumulator) or (REDUCTIONS[accumulator][0], (values,))
    assert torch.autograd.gradgradcheck(lambda *rows: gather(topology, *rows), inputs)


def test_concat_pads_in_edge_order() -> None:
    topology = odd_topologies()["self-loops"]
    values = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    out = naive.gather_concat(topology, values, max_degree=3)
    assert out.tolist() == [[1, 0, 0], [2, 3, 0], [0, 0, 0]]
    out.backward(torch.arange(9.0).reshape(3, 3))
    assert values.grad.flatten().tolist() == [0, 3, 4]


def test_concat_refuses_a_vertex_with_more_edges_than_stated() -> None:
    with pytest.raises(InputError, match=r"too many in-edges .*: 36, max_degree is 4 \(in destination vertex 0\)"):
        naive.gather_concat(odd_topologies()["one hub"], torch.zeros(36, 1), max_degree=4)


def test_scatter_copies_the_rows_of_both_ends() -> None:
    block = block_of(skewed(), 11)
    x = torch.randn(block.num_src, 3)
    ends = [
        (int(block.indices[position]), vertex)
        for vertex in range(block.num_dst)
        for position in range(int(block.indptr[vertex]), int(block.indptr[vertex + 1]))
    ]
    src, dst = (torch.tensor(each) for each in zip(*ends, strict=True))
    assert torch.equal(naive.scatter_src(block, x), x[src])
    assert torch.equal(naive.scatter_dst(block, x), x[dst])


def test_an_unknown_accumulator_is_refused() -> None:
    with pytest.raises(ValueError, match="no accumulator 'median'; choose one of sum, mean, max"):
        gathering("sum+median")
