"""Check that a stage treats vertices independently: run on some of the rows, every operator gives those of its rows."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from sagann.compiler.classify import has_rows, has_tensor
from sagann.compiler.trace import ROWS, is_rows
from sagann.errors import LayerError, in_one_line
from sagann.kernels.row_dropout import dropout
from sagann.saga.independence import NUM_ROWS, close, draws_alone, last_positive

# Row 0 is another one here, and so is row 1: what is picked by such numbers shows.
_PART = (5, 3, 4)
# What differs by more than rounding of another order of sums.
_TOLERANCE = 1e-3
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def mixing_node(module: fx.GraphModule, integers: Mapping[str, Tensor], where: str) -> fx.Node | None:
    """The first operator that mixes rows, or None.

    Args:
        module: a stage's, with what its values are like.
        integers: the model's own, by name: ids and divisors among them may be in a range that no made-up ones are in.
        where: what is said of where the stage is from.
    Raises:
        LayerError: the stage cannot be run on made-up rows.
    """
    for node in module.graph.nodes:
        # Masks of dropout are drawn row by row.
        dropped_elsewhere = node.target is dropout and _rows_dim(node.meta["val"]) != 0
        if node.op == "call_function" and (_loses_rows(node) or dropped_elsewhere):
            return node
    try:
        return _differing(module, integers)
    # Whatever an operator may say to numbers that it was not meant for.
    except (IndexError, RuntimeError, ValueError) as error:
        raise LayerError(
            "a model that is streamed must take rows of any numbers",
            value=f"on made-up ones: {in_one_line(error)}",
            where=where,
            fix="Clamp what must lie in a range, as ids of nn.Embedding, or run the model in memory.",
        ) from error


def _differing(module: fx.GraphModule, integers: Mapping[str, Tensor]) -> fx.Node | None:
    """The first operator that gives other rows where it is given some of them only."""
    given = [node for node in module.graph.nodes if node.op == "placeholder"]
    likes = [node.meta["val"] for node in given]
    are_ids = any(map(is_integral, module.graph.nodes))
    # One for all of them: two inputs of one shape are different rows, and what they differ in is seen.
    generator = torch.Generator().manual_seed(0)
    inputs = [
        integers[node.target] if node.target in integers else _made_up(like, generator, are_ids=are_ids)
        for node, like in zip(given, likes, strict=True)
    ]
    whole = _Recording(module)
    devices = {value.device for value in inputs if value.is_cuda}
    with torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
        whole.run(*inputs)
        part = _Recording(module, replayed=whole)
        part.run(*(_part(value, like) for value, like in zip(inputs, likes, strict=True)))
    for node, full in whole.values.items():
        again, dim = part.values[node], _rows_dim(node.meta.get("val"))
        if (
            isinstance(full, Tensor)
            and isinstance(again, Tensor)
            and dim is not None
            and not _agree(full, again, dim)
        ):
            # Of an operator with several results, each is a node of its own.
            return node.all_input_nodes[0] if node.target is operator.getitem else node
    return None


def _made_up(like: Tensor, generator: torch.Generator, *, are_ids: bool) -> Tensor:
    """Random numbers, in few rows where the trace has very many.

    Args:
        like: what the trace has.
        generator: draws them.
        are_ids: whether rows may be made into ids: zeros and ones are such of any table.
    """
    shape = [size // ROWS * NUM_ROWS if is_rows(size) else size for size in like.shape]
    if are_ids and _rows_dim(like) is not None:
        # No two rows are alike, whatever their ids.
        ids = torch.randint(0, 2, shape, generator=generator, device="cpu")
        values = ids + 0.4 * torch.rand(shape, generator=generator, device="cpu")
    else:
        values = torch.randn(shape, generator=generator, device="cpu") * 2
        values = values if _rows_dim(like) is None else last_positive(values)
    return values.to(like.device, like.dtype)


def is_integral(node: fx.Node) -> bool:
    """Whether a node is a tensor of integers."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in _INTEGERS


def _loses_rows(node: fx.Node) -> bool:
    """Whether the node reads rows and has none."""
    return has_tensor(node) and not has_rows(node) and any(map(has_rows, node.all_input_nodes))


def _rows_dim(like: object) -> int | None:
    """Which dimension of a value of the trace is the rows, or a multiple of them; None where it has none."""
    if not isinstance(like, Tensor):
        return None
    return next((dim for dim, size in enumerate(like.shape) if is_rows(size)), None)


def _part(value: Any, like: Any) -> Any:
    """Some rows of a value that is ``like`` one of the trace; what has no rows as it is."""
    if isinstance(value, (tuple, list)):
        return type(value)(_part(*pair) for pair in zip(value, like, strict=True))
    dim = _rows_dim(like)
    return value if dim is None else _rows_of(value, dim)


def _rows_of(value: Tensor, dim: int, *, together: bool = True) -> Tensor:
    """Some of the rows.

    Args:
        value: has a multiple of the rows in a dimension.
        dim: that dimension.
        together: whether what belongs to a row stands together there.
    """
    rows = torch.tensor(_PART, device=value.device)
    sizes = (NUM_ROWS, -1) if together else (-1, NUM_ROWS)
    return value.unflatten(dim, sizes).index_select(dim + (not together), rows).flatten(dim, dim + 1)


def _agree(full: Tensor, part: Tensor, dim: int) -> bool:
    if full.shape[dim] % NUM_ROWS:
        return full.shape == part.shape and close(full, part, _TOLERANCE)
    expected = (_rows_of(full, dim, together=together) for together in (True, False))
    return any(rows.shape == part.shape and close(rows, part, _TOLERANCE) for rows in expected)


class _Recording(fx.Interpreter):
    """Runs a stage and keeps every value; random ones are taken from an earlier recording."""

    def __init__(self, module: fx.GraphModule, replayed: _Recording | None = None) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.given = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.values: dict[fx.Node, Any] = {}
        self.replayed = replayed

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if self.replayed is not None and draws(n):
            value = _part(self.replayed.values[n], n.meta["val"])
        # A copy: the next operator may write in place.
        self.values[n] = value.clone() if isinstance(value, Tensor) else value
        return value


def draws(node: fx.Node) -> bool:
    """Whether a node of a stage draws random numbers."""
    return node.target is dropout or draws_alone(node.target)
