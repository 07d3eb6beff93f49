"""Operators of traces: nodes that the passes look for, in place of ATen's decompositions; and the mode that puts them there.

``sagann::gather`` stands between the edges and the vertices. ``sagann::linear`` is a linear map without its bias.
``sagann::dropout`` is dropout in training. In the trace of a model, ``sagann::saga_layer`` is a call of a layer, and
``sagann::gathered`` is the work of its edges between two stages. ``sagann::batch_means``, ``sagann::edge_means`` and
``sagann::batch_scales`` are what a BatchNorm computes of all rows. These operators exist in traces only: stages run functions in their
place (:mod:`sagann.compiler.stages`).
``sagann::typed_linear``, a linear map picked by type, is an operator of :mod:`sagann.kernels` and runs.

While a function is traced (:class:`WholeOperators`), linear maps and dropout stay whole, recurrent cells are taken apart, and every node gets
the user's line. Calls that a program would leave out are refused: switched modes, hooks of tensors, values that leave PyTorch.

A BatchNorm that computes means over vertices, in the trace of a model or of a layer's ApplyVertex, runs as :func:`_over_vertices`. In the trace
of an ApplyEdge the means are over edges, and :func:`_over_edges` runs. Such means take one more gather, before that of the layer: each
destination gathers the sum of its in-edges' rows, the sum of their squared deviations from their own mean, and their number. The means over all
edges follow from these as means over vertices do from rows. :mod:`sagann.compiler.layer_graph` puts that gather in the graph. So the passes,
chunks and exchanges of gathers serve the means as well, and their backward is that of a gather.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.traceback import set_stack_trace
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from sagann.errors import users_line
from sagann.kernels import dense as dense
from sagann.kernels.accumulators import gathering
from sagann.kernels.edge.builder import arithmetic_dtype
from sagann.saga.batch_norms import batch_norms_over_rows, check_rows, normalised, replaced_forwards


def _of_traces(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Define an operator by a function that gives the form of its result. The operator cannot run, nor be differentiated."""
    name = f"sagann::{form.__name__}"
    torch.library.define(name, torch.library.infer_schema(form, mutates_args=()))
    torch.library.register_fake(name)(form)
    return form


@_of_traces
def gather(values: Sequence[Tensor], accumulator: str, max_degree: int) -> Tensor:
    """Reduce the values of all messages of an edge: -> accum."""
    shape = gathering(accumulator, max_degree).shape([value.shape[1:] for value in values])
    return values[-1].new_empty(values[-1].shape[0], *shape)


@_of_traces
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T``."""
    if x.shape[-1] != weight.shape[-1]:
        raise RuntimeError(f"a linear map of {weight.shape[-1]} features got {x.shape[-1]}")
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@_of_traces
def dropout(x: Tensor, p: float, number: int = 0) -> Tensor:
    """Set entries of ``x`` to 0 with probability ``p``, and scale the others by 1 / (1 - p); ``number`` is that in a model."""
    return torch.empty_like(x)


@_of_traces
def saga_layer(x: Sequence[Tensor], call: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The result of a layer's call for the rows ``x``: ``call`` is the call's number, ``shape`` and ``dtype`` are a row's."""
    return x[0].new_empty(x[0].shape[0], *shape, dtype=dtype)


@_of_traces
def gathered(values: Sequence[Tensor], call: int) -> Tensor:
    """The gathered rows of a layer's call, from the rows ``values`` that the edges read. Placed in graphs, never traced."""
    raise AssertionError("stands in graphs only")


@_of_traces
def batch_means(x: Tensor, norm: str) -> Tensor:
    """The means of all vertices' rows by channel, [C]; ``norm`` is the name of the BatchNorm."""
    return x.new_empty(x.shape[1], dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


@_of_traces
def edge_means(values: Sequence[Tensor], norm: str) -> Tensor:
    """The means of all edges' rows by channel, [C]. In the trace of a layer, ``values`` are the rows and a column of ones; then what is
    gathered of both, for each part of the edges."""
    return values[0].new_empty(values[0].shape[1])


@_of_traces
def batch_scales(means: Tensor) -> Tensor:
    """The reciprocals of the standard deviations by channel, [C], of the rows that ``means`` are of."""
    return torch.empty_like(means)


GATHER = torch.ops.sagann.gather.default
LINEAR = torch.ops.sagann.linear.default
DROPOUT = torch.ops.sagann.dropout.default
SAGA_LAYER = torch.ops.sagann.saga_layer.default
GATHERED = torch.ops.sagann.gathered.default
BATCH_MEANS = torch.ops.sagann.batch_means.default
EDGE_MEANS = torch.ops.sagann.edge_means.default
BATCH_SCALES = torch.ops.sagann.batch_scales.default
MEANS = (BATCH_MEANS, EDGE_MEANS)
"Means that BatchNorms compute. Two equal calls of a BatchNorm are two: each of them moves its running means."
LINKS = (GATHERED, *MEANS)
"What stands between the stages of a model."
TYPED_LINEAR = torch.ops.sagann.typed_linear.default


class NotShown(Exception):  # noqa: N818 - not an error of its own: the tracer turns it into one.
    """The function makes a call that a trace does not show; the message names the call."""


def _modes() -> tuple[object, ...]:
    """Modes that change operators and their backward."""
    autocast = [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (*autocast, torch.is_inference_mode_enabled(), hooks)


class WholeOperators(TorchFunctionMode):
    """The mode in which a function is traced."""

    def __enter__(self) -> WholeOperators:
        self._modes = _modes()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not all(issubclass(kind, Tensor) for kind in types):
            # A stand-in for a tensor decides for itself what is done with it.
            return func(*args, **(kwargs or {}))
        line = users_line()
        set_stack_trace([line])
        if _modes() != self._modes:
            raise NotShown(f"it switches autocast, inference mode or hooks of saved tensors on or off ({line})")
        if func in _REFUSED:
            raise NotShown(f"{_REFUSED[func]} ({line})")
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    mapped = torch.ops.sagann.linear(input, weight) if weight.ndim == 2 else input @ weight
    return mapped if bias is None else mapped + bias


def _einsum(equation: Any, *operands: Any) -> Tensor:
    """``torch.einsum``; a linear map written as a sum of products becomes one."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    form = (
        re.fullmatch(r"(\w+)(\w),(\w)(\w)->(\w+)(\w)", equation.replace(" ", ""))
        if isinstance(equation, str)
        else None
    )
    if form is not None and len(set("".join(form.group(1, 2, 6)))) == len(form[1]) + 2:
        rows, summed, first, second, kept, new = form.groups()
        if rows == kept and (first, second) in ((summed, new), (new, summed)):
            return _linear(operands[0], operands[1] if first == new else operands[1].t())
    return torch.einsum(equation, *operands)


def _matmul(input: Tensor, other: Tensor, **kwargs: Any) -> Tensor:
    """``torch.matmul``; the product of rows and one matrix becomes a linear map."""
    if input.ndim > 1 and other.ndim == 2 and not kwargs:
        return _linear(input, other.t())
    return torch.matmul(input, other, **kwargs)


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``F.rms_norm`` without the in-place operators of PyTorch's decomposition."""
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    square = wide.square().mean(list(range(-len(normalized_shape), 0)), keepdim=True)
    out = wide * torch.rsqrt(square + (torch.finfo(wide.dtype).eps if eps is None else eps))
    return (out if weight is None else out * weight).to(input.dtype)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """``torch.cosine_similarity`` without the write in place. A norm below ``eps`` counts as ``eps`` and keeps its slope."""
    if not x1.is_floating_point() or not x2.is_floating_point():
        return torch.cosine_similarity(x1, x2, dim, eps)
    x1, x2 = torch.broadcast_tensors(x1, x2)
    norms = [torch.linalg.vector_norm(x, dim=dim, keepdim=True) for x in (x1, x2)]
    first, second = (torch.where(norm < eps, norm + (eps - norm).detach(), norm) for norm in norms)
    return ((x1 / first) * (x2 / second)).sum(dim)


def _cell(gates: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A recurrent cell: ``gates`` gets the maps of input and hidden state, and the hidden state."""

    # Arguments have PyTorch's names.
    def cell(
        input: Tensor,
        hx: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        return gates(_linear(input, w_ih, b_ih), _linear(hx, w_hh, b_hh), hx)

    return cell


def _gru(of_x: Tensor, of_hidden: Tensor, hidden: Tensor) -> Tensor:
    size = hidden.shape[-1]
    reset = torch.sigmoid(of_x[:, :size] + of_hidden[:, :size])
    update = torch.sigmoid(of_x[:, size : 2 * size] + of_hidden[:, size : 2 * size])
    new = torch.tanh(of_x[:, 2 * size :] + reset * of_hidden[:, 2 * size :])
    return new + update * (hidden - new)


def _lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    hidden, cell = hx
    both = _linear(input, w_ih, b_ih) + _linear(hidden, w_hh, b_hh)
    keep_new, keep_old, new, out = both.chunk(4, 1)
    cell = torch.sigmoid(keep_old) * cell + torch.sigmoid(keep_new) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(cell), cell


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    dropped = torch.ops.sagann.dropout(input, float(p))
    return input.copy_(dropped) if inplace else dropped


_DATA: Any = Tensor.data
_REQUIRES_GRAD: Any = Tensor.requires_grad
_REPLACED: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.dropout: _dropout,
    F.rms_norm: _rms_norm,
    torch.cosine_similarity: _cosine_similarity,
    torch.dropout: lambda input, p, train: _dropout(input, p, train),
    torch.einsum: _einsum,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.mm, Tensor.mm), lambda input, mat2, **kwargs: _matmul(input, mat2, **kwargs)),
    # PyTorch's decompositions of the cells ask for a concrete number of rows, or write in place.
    torch.gru_cell: _cell(_gru),
    torch.lstm_cell: _lstm_cell,
    torch.rnn_tanh_cell: _cell(lambda of_x, of_hidden, _: torch.tanh(of_x + of_hidden)),
    torch.rnn_relu_cell: _cell(lambda of_x, of_hidden, _: torch.relu(of_x + of_hidden)),
    # A functional tensor would return itself, with its gradient.
    _DATA.__get__: lambda tensor, *_: tensor.detach(),
}
_ASKS = "it asks whether a tensor gets a gradient, or has it changed by a hook"
_REFUSED: dict[Any, str] = {
    _DATA.__set__: "it sets the data of a tensor",
    torch._C._set_grad_enabled: "it switches gradients off or on",
    # No tensor of a trace gets a gradient.
    _REQUIRES_GRAD.__get__: _ASKS,
    Tensor.register_hook: _ASKS,
    # A trace would contain every step of the sequence.
    **{
        rnn: f"it runs {rnn.__name__} over a sequence"
        for rnn in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
    },
    # A tensor of a trace has no memory to read.
    **{
        read: f"it takes values out of PyTorch by Tensor.{read.__name__}"
        for read in (Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__dlpack__)
    },
}


@contextmanager
def traced_batch_norms(module: nn.Module, *, over_edges: bool = False) -> Iterator[None]:
    """Inside the ``with`` block, BatchNorms of the module that compute means over rows leave nodes with their names in the module."""
    computing = batch_norms_over_rows(module)
    own = {name: each for name, each in computing.items() if not _is_plain(each)}
    plain = {name: each for name, each in computing.items() if name not in own}
    # On the edges, the others become pointwise operators, and what depends on their running means alone is computed once.
    others = {
        name: each
        for name, each in module.named_modules()
        if over_edges and _is_plain(each) and name not in computing
    }
    with (
        replaced_forwards(own, _refused_norm),
        replaced_forwards(plain, _over_edges if over_edges else _over_vertices),
        replaced_forwards(others, _evaluated),
    ):
        yield


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm, and does no more."""
    return isinstance(module, _BatchNorm) and type(module).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def _refused_norm(norm: Any, name: str, x: Tensor) -> NoReturn:
    raise NotShown(
        f"the {type(norm).__name__} '{name}', which is trained, has a forward of its own; call a torch.nn.BatchNorm1d instead"
    )


def _over_vertices(norm: Any, name: str, x: Tensor) -> Tensor:
    check_rows(norm, x)
    return _normalised(norm, x, torch.ops.sagann.batch_means(x, name))


def _over_edges(norm: Any, name: str, x: Tensor) -> Tensor:
    check_rows(norm, x)
    wide = x.to(arithmetic_dtype(x.dtype))
    return _normalised(norm, x, torch.ops.sagann.edge_means([wide, wide.new_ones(len(wide), 1)], name))


def _evaluated(norm: Any, name: str, x: Tensor) -> Tensor:
    check_rows(norm, x)
    means, variances = (each.to(arithmetic_dtype(each.dtype)) for each in (norm.running_mean, norm.running_var))
    return normalised(norm, x, means, (variances + norm.eps).rsqrt())


def _normalised(norm: Any, x: Tensor, means: Tensor) -> Tensor:
    return normalised(norm, x, means, torch.ops.sagann.batch_scales(means))
