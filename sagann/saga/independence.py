"""The trace-time check: ApplyEdge must treat edges, and ApplyVertex vertices, independently.

Both functions are run on a handful of made-up rows while every operator they call is recorded, then again on
parts of these rows. Row i of each intermediate result must be the same in both runs. Whatever reduces over
rows, shifts them, normalises across them or branches on their values differs, and the first operator that
does is the culprit; the message names it and the user's line. No table of operators is needed, so the check
holds for any of PyTorch's. Random operators (dropout) replay the values of the first run.

References:
    Ma et al., NGra, 2018, Sec. 2.2: the stages are parallel over edges and over vertices.
"""

from __future__ import annotations

import functools
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sagann.errors import LayerError, SagannError, in_one_line
from sagann.kernels.accumulators import gathering
from sagann.saga.accumulator import values_of
from sagann.saga.edge import Edge, unnamed
from sagann.saga.shared_lock import MODELS
from sagann.saga.side_effects import taken_back

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer

NUM_ROWS = 7
"Rows that are made up."
# Two parts without a row in common, both out of order: no reduction over the rows gives the same on all three.
PARTS = ((5, 2, 0), (6, 4, 3, 1))
# Results of one computation on other rows differ by rounding alone: relative to the largest entry.
TOLERANCES = {torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}
DEFAULT_TOLERANCE = 1e-4

# They take a tensor for its dtype and device; what they return depends on no row (or is not initialised).
_READS_NO_VALUES = {"empty_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"}
_PACKAGE = Path(__file__).parents[1]
_NOT_THE_USERS = (
    str(Path(torch.__file__).parent),
    str(_PACKAGE / "saga"),
    str(_PACKAGE / "compiler"),
    str(_PACKAGE / "kernels"),
)


class IndependenceCheck:
    """Runs the check once per layer, mode (training or not) and form of the input."""

    def __init__(self) -> None:
        self._passed: set[tuple[object, ...]] = set()

    def check(
        self, layer: SagaLayer, x: Mapping[str, Tensor], data: Mapping[str, Tensor], *, again: bool = False
    ) -> None:
        """Check both functions of ``layer`` for rows like those of ``x`` and ``data``.

        Args:
            layer: whose functions.
            x: vertex features.
            data: the edge data that the layer reads.
            again: also if they have passed, for the layer may have changed.
        Raises:
            LayerError: a function mixes rows, branches on values, has side effects, or fails.
        """
        key: tuple[object, ...] = (layer.training, repr(layer.accumulator))
        key += tuple((name, rows.dtype, rows.device, rows.shape[1:]) for name, rows in (*x.items(), *data.items()))
        if (key in self._passed and not again) or torch.compiler.is_compiling():
            return
        if torch._C._are_functorch_transforms_active():
            # Tensors that torch.func wraps have no storage to compare. The next call outside of it is checked.
            return
        with MODELS.changing(), _undisturbed(layer, next(iter(x.values())).device):
            _check_layer(layer, x, data)
        self._passed.add(key)


def _check_layer(layer: SagaLayer, x: Mapping[str, Tensor], data: Mapping[str, Tensor]) -> None:
    name = type(layer).__name__
    for parameter, tensor in layer.named_parameters():
        if is_lazy(tensor):
            raise LayerError(
                "a SAGA layer must have its parameters",
                value=f"'{parameter}' gets its shape when the layer first runs",
                where=name,
                fix="State the widths.",
            )
    generator = torch.Generator().manual_seed(0)
    src, dst = ({key: _made_up_rows(rows, generator) for key, rows in x.items()} for _ in range(2))
    edges = {key: _sampled_rows(rows, generator) for key, rows in data.items()}
    where = f"{name}.apply_edge"

    def apply_edge(*rows: Tensor) -> Any:
        given = iter(rows)
        src_rows, dst_rows = ({key: functools.partial(_itself, next(given)) for key in x} for _ in range(2))
        edge = Edge(src=src_rows, dst=dst_rows, data=dict(zip(data, given, strict=True)), reader=f"layer {name}")
        return layer.apply_edge(edge)

    labels = [_label(f"edge.{end}", key) for end, keys in (("src", x), ("dst", x), ("data", data)) for key in keys]
    output = _check_rows(apply_edge, [*src.values(), *dst.values(), *edges.values()], layer, where, labels)
    try:
        values = values_of(layer.accumulator, output, NUM_ROWS, where)
    except LayerError:
        return  # The accumulator says so, with the real shapes.
    _check_floating(values, name)
    form = gathering(layer.accumulator, layer.max_degree or 0)
    shapes = form.shapes([value.shape[1:] for value in values])
    last = [each.values.stop - 1 for each in form.reduced]
    accums = [
        _made_up_rows(values[at].new_empty(NUM_ROWS, *shape), generator)
        for at, shape in zip(dict.fromkeys(last), shapes, strict=True)
    ]

    def apply_vertex(*rows: Tensor) -> Any:
        vertex = dict(zip(x, rows, strict=False))
        gathered = rows[len(x) :]
        several = isinstance(layer.accumulator, Mapping)
        accum = dict(zip(layer.accumulator, gathered, strict=True)) if several else gathered[0]
        return layer.apply_vertex(unnamed(vertex), accum)

    names = layer.accumulator if isinstance(layer.accumulator, Mapping) else ("",)
    labels = [*(_label("vertex", key) for key in x), *(_label("accum", key) for key in names)]
    output = _check_rows(apply_vertex, [*dst.values(), *accums], layer, f"{name}.apply_vertex", labels)
    if not isinstance(output, Tensor) or output.ndim < 1 or output.shape[0] != NUM_ROWS:
        form_of = f"a tensor {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise LayerError(
            "apply_vertex must return one row per vertex",
            value=f"{form_of} for {NUM_ROWS} vertices",
            where=f"{name}.apply_vertex",
            fix="Return a tensor whose dimension 0 is the vertices.",
        )


def _itself(rows: Tensor) -> Tensor:
    return rows


def _label(what: str, key: str) -> str:
    return f"{what}[{key!r}]" if key else what


def _check_floating(values: Sequence[Tensor], name: str) -> None:
    for value in values:
        if isinstance(value, Tensor) and not value.is_floating_point():
            raise LayerError(
                "apply_edge must return floating numbers",
                value=f"{value.dtype}, of which no sum has a gradient",
                where=f"{name}.apply_edge",
                fix="Convert what it returns: message.to(edge.src.dtype), or the vertex features where they are integers.",
            )


def _check_rows(
    function: Callable[..., Any], inputs: Sequence[Tensor], layer: nn.Module, name: str, labels: Sequence[str]
) -> Any:
    """Run ``function`` on all rows and on parts of them, and compare operator by operator."""
    # Copies, so that a function that overwrites its input is caught as doing that.
    # A value is no more exact than the least exact one that it was computed of.
    tolerance = max(_tolerance(tensor.dtype) for tensor in (*inputs, *layer.parameters(), *layer.buffers()))
    whole = _Recorder([tensor.clone() for tensor in inputs], layer)
    output = whole.run(function, name, labels)
    for part in PARTS:
        rows = torch.tensor(part, device=inputs[0].device)
        again = _Recorder([tensor.index_select(0, rows) for tensor in inputs], layer, replay=(whole, rows))
        again.run(function, name, labels)
        _compare(whole, again, rows, name, tolerance)
    for step in whole.steps:
        if step.side_effect:
            raise LayerError(
                f"{name} has a side effect",
                value=f"operator {step.operator} changes {step.side_effect} in place",
                where=step.line,
                fix="Compute a new tensor instead; sagann decides how often, and on which rows, the function runs.",
            )
    return output


_aten = torch.ops.aten
# What they hold is chance.
_UNINITIALISED = (_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided)


class _Step:
    """One recorded operator call: what it read and wrote (storages), and a copy of its results."""

    __slots__ = ("line", "operator", "outputs", "reads", "results", "side_effect", "writes")

    def __init__(self, operator: str, line: str, reads: set[int], results: list[Tensor], side_effect: str) -> None:
        self.operator = operator
        self.line = line
        self.reads = reads
        # The results themselves are kept as well, so that no storage is freed and its address used again.
        self.results = results
        self.outputs = [tensor.detach().clone() for tensor in results]
        self.writes = {_storage(tensor) for tensor in results}
        self.side_effect = side_effect


class _Recorder(TorchDispatchMode):
    """Records every operator below autograd; replays random ones from an earlier recording."""

    def __init__(
        self, inputs: Sequence[Tensor], layer: nn.Module, replay: tuple[_Recorder, Tensor] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = list(inputs)
        self.layer = layer
        self.steps: list[_Step] = []
        self._replay = replay
        self._owned = {_storage(tensor): "its input" for tensor in inputs}
        self._owned |= {_storage(tensor): f"parameter '{name}'" for name, tensor in layer.named_parameters()}
        self._owned |= {_storage(tensor): f"buffer '{name}'" for name, tensor in layer.named_buffers()}

    def run(self, function: Callable[..., Any], name: str, labels: Sequence[str]) -> Any:
        """Call ``function`` on the inputs; errors of its own become a LayerError with the user's line.

        What it sets or appends to is taken back, so that it finds the same the next time.
        """
        try:
            with taken_back(self.layer), self:
                return function(*self.inputs)
        except Exception as error:
            at_vertices = name.endswith("apply_vertex")
            # Of an edge's own data, real rows are taken: what is wrong with them is said as it is.
            if isinstance(error, LayerError) or (isinstance(error, SagannError) and not at_vertices):
                raise
            raise LayerError(
                f"{name} failed on made-up rows, which it must take as any others",
                value=in_one_line(error),
                where=_line_of_error(error),
                fix=self._advice(error, labels),
            ) from error

    def _advice(self, error: Exception, names: Sequence[str]) -> str:
        """What to look for, by the kind of error."""
        given = dict(zip(names, self.inputs, strict=False))
        if isinstance(error, AttributeError | NameError):
            return f"Check the name; what it is given is {' and '.join(given)}."
        forms = (
            f"{name} {rows.dtype} [rows, {', '.join(map(str, rows.shape[1:]))}]" for name, rows in given.items()
        )
        return (
            f"Check shapes and dtypes against those of its input: {', '.join(forms)}. Clamp what must lie in a range, as ids of "
            "nn.Embedding."
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        operator = func._schema.name.removeprefix("aten::")
        results = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
        if self._replay is not None and (draws_alone(func) or func.overloadpacket in _UNINITIALISED):
            _replay_results(results, self._replay, len(self.steps))
        arguments = [*args, *(kwargs or {}).values()]
        reads = {_storage(leaf) for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)}
        side_effect = ""
        for argument, declared in zip(args, func._schema.arguments, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write and isinstance(argument, Tensor):
                side_effect = side_effect or self._owned.get(_storage(argument), "")
        self.steps.append(_Step(operator, users_line(), reads, results, side_effect))
        return out


def _compare(whole: _Recorder, part: _Recorder, rows: Tensor, name: str, tolerance: float) -> None:
    """Raise for the first operator whose rows differ between the two recordings."""
    # Storages whose rows belong to edges or vertices; the parameters' and constants' do not.
    of_rows = {_storage(tensor) for tensor in whole.inputs}
    for step, again in zip(whole.steps, part.steps, strict=False):
        if step.operator != again.operator:
            raise _branching(name, step)
        if not step.reads & of_rows:
            continue
        if step.operator in _READS_NO_VALUES:
            continue
        for full, partial in zip(step.outputs, again.outputs, strict=True):
            if not _rows_agree(full, partial, rows, tolerance):
                raise LayerError(
                    f"{name} must treat rows independently",
                    value=f"operator {step.operator} mixes them, or depends on their number "
                    f"(its result is {list(full.shape)} for {NUM_ROWS} rows)",
                    where=step.line,
                    fix="Reduce over feature dimensions only (dim=-1, not dim=0 or all); "
                    "to combine neighbours use the accumulator, to normalise over vertices use LayerNorm.",
                )
        of_rows |= step.writes
    if len(whole.steps) != len(part.steps):
        longer = max(whole.steps, part.steps, key=len)
        raise _branching(name, longer[min(len(whole.steps), len(part.steps))])


def _branching(name: str, step: _Step) -> LayerError:
    return LayerError(
        f"{name} branches on its rows",
        value=f"operator {step.operator}",
        where=step.line,
        fix="Use torch.where on every row instead of a Python condition or .item().",
    )


def _rows_agree(full: Tensor, partial: Tensor, rows: Tensor, tolerance: float) -> bool:
    if full.shape == partial.shape:
        # Without a dimension for the rows, only an empty result depends on none of them.
        return full.numel() == 0
    expected = _part_of(full, list(partial.shape), rows)
    return any(close(candidate, partial, tolerance) for candidate in expected)


def _part_of(full: Tensor, shape: list[int], rows: Tensor) -> Iterator[Tensor]:
    """The rows of ``full`` as a tensor of ``shape``, for each way in which one dimension can hold the rows."""
    differing = [dim for dim in range(full.ndim) if full.ndim == len(shape) and full.shape[dim] != shape[dim]]
    if len(differing) != 1:
        return
    dim = differing[0]
    per_row, rest = divmod(full.shape[dim], NUM_ROWS)
    if rest or shape[dim] != per_row * len(rows):
        return
    yield full.unflatten(dim, (NUM_ROWS, per_row)).index_select(dim, rows).flatten(dim, dim + 1)
    yield full.unflatten(dim, (per_row, NUM_ROWS)).index_select(dim + 1, rows).flatten(dim, dim + 1)


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCES.get(dtype, DEFAULT_TOLERANCE) if dtype.is_floating_point else 0.0


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether results of one computation on other rows are equal, but for rounding.

    Args:
        a: any shape.
        b: of the same shape and dtype.
        tolerance: relative to the largest finite entry; at least the dtype's own. Integers are equal or not.
    """
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    tolerance = max(tolerance, TOLERANCES.get(a.dtype, DEFAULT_TOLERANCE))
    finite = a[torch.isfinite(a)].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def draws_alone(operator: object) -> bool:
    """Whether an operator draws random numbers, and each by itself: attention may drop some, but reads other rows too."""
    is_random = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
    return is_random and "attention" not in str(operator)


def _replay_results(results: list[Tensor], replay: tuple[_Recorder, Tensor], index: int) -> None:
    whole, rows = replay
    if index >= len(whole.steps):
        return
    for now, before in zip(results, whole.steps[index].outputs, strict=False):
        if now.shape == before.shape:
            now.copy_(before)
        elif part := list(_part_of(before, list(now.shape), rows))[:1]:
            now.copy_(part[0])


@contextmanager
def _undisturbed(layer: nn.Module, device: torch.device) -> Iterator[None]:
    """Leave no trace: no gradients, random states and buffers put back."""
    devices = [device] if device.type == "cuda" else []
    buffers = {buffer: buffer.detach().clone() for buffer in layer.buffers()}
    caching = torch.is_autocast_cache_enabled()
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        try:
            # A weight that was cast once would not be cast in the second run.
            torch.set_autocast_cache_enabled(False)
            yield
        finally:
            torch.set_autocast_cache_enabled(caching)
            for buffer, saved in buffers.items():
                # Inference tensors are changed in inference mode only. The others keep their version: a backward may have
                # saved them before.
                if torch.is_inference_mode_enabled() or not buffer.is_inference():
                    buffer.data.copy_(saved)


def last_positive(rows: Tensor) -> Tensor:
    """The rows, in place, with the last of several features positive: what is NaN, or 0, of negative numbers tells nothing."""
    if rows.shape[-1] > 1:
        rows[..., -1] = rows[..., -1].abs() + 0.1
    return rows


def _made_up_rows(like: Tensor, generator: torch.Generator) -> Tensor:
    rows = last_positive(torch.randn(NUM_ROWS, *like.shape[1:], generator=generator, device="cpu"))
    return (rows if like.is_floating_point() else rows * 8).to(device=like.device, dtype=like.dtype)


def _sampled_rows(data: Tensor, generator: torch.Generator) -> Tensor:
    """Rows for edge data: real ones where they are integers (types, ids), made-up weights otherwise."""
    if data.is_floating_point():
        return _made_up_rows(data, generator).abs() + 0.1
    if len(data) == 0:
        return data.new_zeros(NUM_ROWS, *data.shape[1:])
    return data[torch.arange(NUM_ROWS, device=data.device) * (len(data) - 1) // (NUM_ROWS - 1)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def users_line() -> str:
    """The innermost line of the stack that is the user's: "file:line: code"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return _format_line(frame.f_code.co_filename, frame.f_lineno)


def _line_of_error(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    return _format_line(frames[-1].filename, frames[-1].lineno or 0) if frames else "the layer"


def _format_line(filename: str, lineno: int) -> str:
    source = linecache.getline(filename, lineno).strip()
    return f"{Path(filename).name}:{lineno}: {source[:100]}"
