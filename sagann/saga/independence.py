"""The independence check: ApplyEdge must treat edges independently, and ApplyVertex vertices, but for a BatchNorm.

Both functions run on made-up rows and on parts of them (:mod:`sagann.saga.row_runs`). The error names the first operator
that mixes rows and the user's line. A function that branches on values, or has a side effect, is refused as well.

References:
    Ma et al., NGra, 2018, Sec. 2.2: the stages are parallel over edges and over vertices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from sagann.errors import LayerError, SagannError, in_one_line, line_of_error, users_line
from sagann.kernels.accumulators import gathering
from sagann.saga.batch_norms import with_running_means
from sagann.saga.edge import Edge, form_of_output, unnamed, values_of
from sagann.saga.row_runs import (
    NUM_ROWS,
    READS_NO_VALUES,
    How,
    Run,
    Step,
    compare_runs,
    draws_alone,
    last_positive,
    sampled_rows,
    tensors_in,
    tolerance_of,
)
from sagann.saga.shared_lock import MODELS
from sagann.saga.side_effects import taken_back

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer


_EXPECTED = {
    "apply_edge": (
        "def apply_edge(self, edge)",
        1,
        "edge.src has the rows of the sources (x_j of PyG), edge.dst those of the destinations (x_i), and edge.data the edge data "
        "that the class attribute edge_data names",
    ),
    "apply_vertex": (
        "def apply_vertex(self, vertex, accum)",
        2,
        "vertex has the rows before the layer, and accum what was gathered",
    ),
    "prepare": ("@staticmethod def prepare(graph)", 1, "it is called on the class, and returns the prepared graph"),
}
"""Of each function: its definition, how many arguments the system passes, and what they are."""


_PASSED: WeakKeyDictionary[SagaLayer, set[tuple[object, ...]]] = WeakKeyDictionary()
"Modes and forms of the input with which each layer has passed."


def check_functions(
    layer: SagaLayer, x: Mapping[str, Tensor], data: Mapping[str, Tensor], *, again: bool = False
) -> None:
    """Refuse a layer of which a function mixes rows like those of ``x`` and ``data``, branches on values, has side effects, or fails.

    The check runs once per layer, mode (training or not) and form of the input; with ``again``, also where the layer has passed.
    """
    # Tensors that torch.func wraps have no storage to compare. The next call outside of it is checked.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return
    forms = [(name, rows.dtype, rows.device, rows.shape[1:]) for name, rows in (*x.items(), *data.items())]
    key, passed = (layer.training, repr(layer.accumulator), *forms), _PASSED.setdefault(layer, set())
    if key in passed and not again:
        return
    # Means over all rows are what a BatchNorm is for; without them rows must be independent.
    with MODELS.changing(), _undisturbed(layer, next(iter(x.values())).device), with_running_means(layer):
        _check_layer(layer, x, data)
    passed.add(key)


def _check_layer(layer: SagaLayer, x: Mapping[str, Tensor], data: Mapping[str, Tensor]) -> None:
    name = type(layer).__name__
    check_signatures(layer, "apply_edge", "apply_vertex")
    for parameter, tensor in layer.named_parameters():
        if is_lazy(tensor):
            raise LayerError(
                f"a SAGA layer must have its parameters: '{parameter}' gets its shape when the layer first runs (in {name})",
                hint="State the widths.",
            )
    generator = torch.Generator().manual_seed(0)
    src, dst = ({key: _made_up_rows(rows, generator) for key, rows in x.items()} for _ in range(2))
    edges = {key: _rows_of_edges(rows, generator) for key, rows in data.items()}
    where = f"{name}.apply_edge"

    def apply_edge(*rows: Tensor) -> Any:
        given = iter(rows)
        src_rows, dst_rows = ({key: next(given) for key in x} for _ in range(2))
        edge = Edge(src=src_rows, dst=dst_rows, data=dict(zip(data, given, strict=True)), reader=f"layer {name}")
        return layer.apply_edge(edge)

    inputs = _labelled("edge.src", src) | _labelled("edge.dst", dst) | _labelled("edge.data", edges)
    output = _check_rows(apply_edge, inputs, layer, where)
    try:
        values = values_of(layer.accumulator, output, NUM_ROWS, where)
    except LayerError:
        return  # The accumulator says so, with the real shapes.
    for value in values:
        if not value.is_floating_point():
            raise LayerError(
                f"apply_edge must return floating numbers: {value.dtype}, of which no sum has a gradient (in {where})",
                hint="Convert what it returns: message.to(edge.src.dtype), or the vertex features where they are integers.",
            )
    form = gathering(layer.accumulator, layer.max_degree or 0)
    shapes = form.shapes([value.shape[1:] for value in values])
    last = [each.values.stop - 1 for each in form.reduced]
    names = layer.accumulator if isinstance(layer.accumulator, Mapping) else ("",)
    accums = {
        key: _made_up_rows(values[at].new_empty(NUM_ROWS, *shape), generator)
        for key, at, shape in zip(names, dict.fromkeys(last), shapes, strict=True)
    }

    def apply_vertex(*rows: Tensor) -> Any:
        vertex = dict(zip(x, rows, strict=False))
        accum = dict(zip(accums, rows[len(x) :], strict=True))
        return layer.apply_vertex(unnamed(vertex), unnamed(accum))

    inputs = _labelled("vertex", dst) | _labelled("accum", accums)
    output = _check_rows(apply_vertex, inputs, layer, f"{name}.apply_vertex")
    if not isinstance(output, Tensor) or output.ndim < 1 or output.shape[0] != NUM_ROWS:
        raise LayerError(
            f"apply_vertex must return one row per vertex: {form_of_output(output)} for {NUM_ROWS} vertices (in {name}.apply_vertex)",
            hint="Return a tensor whose dimension 0 is the vertices.",
        )


def check_signatures(layer: SagaLayer, *names: str) -> None:
    """Refuse a layer of which one of these functions cannot be called with the arguments that the system passes."""
    for name in names:
        definition, num_arguments, meaning = _EXPECTED[name]
        function = getattr(type(layer) if name == "prepare" else layer, name)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            # A built-in function does not say what it takes.
            continue
        try:
            signature.bind(*[None] * num_arguments)
        except TypeError as error:
            raise LayerError(
                f"{name} takes other arguments than it is given: {name}{signature}, expected {definition}: {error} "
                f"(in layer {type(layer).__name__})",
                hint=f"Write it as {definition}: {meaning}.",
            ) from None


def _labelled(what: str, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows by what the user's function calls them."""
    return {f"{what}[{key!r}]" if key else what: each for key, each in rows.items()}


def _check_rows(function: Callable[..., Any], inputs: Mapping[str, Tensor], layer: nn.Module, name: str) -> Any:
    """Run ``function`` on all rows and on parts of them, and compare operator by operator."""
    # A value is no more exact than the least exact one that it is computed from.
    tolerance = max(
        tolerance_of(tensor.dtype) for tensor in (*inputs.values(), *layer.parameters(), *layer.buffers())
    )

    def execute(run: Run, given: list[Tensor]) -> Any:
        return _Recorder(run, dict(zip(inputs, given, strict=True)), layer).run(function, name)

    output, difference = compare_runs(execute, list(inputs.values()), [0] * len(inputs), tolerance)
    if difference is not None:
        raise _refusal(name, *difference)
    return output


def _refusal(name: str, how: How, step: Step) -> LayerError:
    if how == "branches":
        found = f"branches on its rows: operator {step.operator}"
        hint = "Use torch.where on every row instead of a Python condition or .item()."
    elif how == "overwrites":
        found = f"has a side effect: operator {step.operator} changes {step.overwrites} in place"
        hint = "Compute a new tensor instead; sagann decides how often, and on which rows, the function runs."
    else:
        shapes = ", ".join(str(list(result.shape)) for result in step.results)
        found = (
            f"must treat rows independently: operator {step.operator} mixes them, or depends on their number "
            f"(its result is {shapes} for {NUM_ROWS} rows)"
        )
        hint = (
            "Reduce over feature dimensions only (dim=-1, not dim=0 or all); "
            "to combine neighbours use the accumulator, to normalise over vertices use LayerNorm."
        )
    return LayerError(f"{name} {found} (in {step.line})", hint=hint)


class _Recorder(TorchDispatchMode):
    """Records every operator below autograd while a layer's function runs."""

    def __init__(self, run: Run, inputs: Mapping[str, Tensor], layer: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run
        self._inputs = inputs
        self._layer = layer
        self._owned = {_storage(tensor): "its input" for tensor in inputs.values()}
        self._owned |= {_storage(tensor): f"parameter '{name}'" for name, tensor in layer.named_parameters()}
        self._owned |= {_storage(tensor): f"buffer '{name}'" for name, tensor in layer.named_buffers()}
        # Storages whose rows belong to edges or vertices; those of parameters and constants do not.
        self._of_rows = {_storage(tensor) for tensor in inputs.values()}
        # No storage may be freed during the run: its address would be used again.
        self._kept: list[list[Tensor]] = []

    def run(self, function: Callable[..., Any], name: str) -> Any:
        """Call ``function`` on the inputs, and take back what it sets or appends to, so that every run finds the same."""
        try:
            with taken_back(self._layer), self:
                return function(*self._inputs.values())
        except Exception as error:
            # An edge's own data are real rows: errors about them are the user's.
            is_users = isinstance(error, SagannError) and not name.endswith("apply_vertex")
            if isinstance(error, LayerError) or is_users:
                raise
            forms = (
                f"{label} {rows.dtype} [rows, {', '.join(map(str, rows.shape[1:]))}]"
                for label, rows in self._inputs.items()
            )
            hint = (
                f"Check shapes and dtypes against those of its input: {', '.join(forms)}. Clamp what must lie in a range, as ids of "
                "nn.Embedding."
            )
            if isinstance(error, AttributeError | NameError):
                hint = f"Check the name; what it is given is {' and '.join(self._inputs)}."
            raise LayerError(
                f"{name} failed on made-up rows, which it must take as any others: {in_one_line(error)} (in {line_of_error(error)})",
                hint=hint,
            ) from error

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        operator, results = func._schema.name.removeprefix("aten::"), tensors_in(out)
        reads_rows = any(_storage(tensor) in self._of_rows for tensor in tensors_in((args, kwargs)))
        of_rows = reads_rows and operator not in READS_NO_VALUES
        if of_rows:
            self._of_rows.update(map(_storage, results))
        self._kept.append(results)
        overwritten = (
            self._owned.get(_storage(argument), "")
            for argument, declared in zip(args, func._schema.arguments, strict=False)
            if declared.alias_info is not None and declared.alias_info.is_write and isinstance(argument, Tensor)
        )
        step = Step(operator, users_line(), results, of_rows, next(filter(None, overwritten), ""))
        self._run.add(step, draws=draws_alone(func))
        return out


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


def _made_up_rows(like: Tensor, generator: torch.Generator) -> Tensor:
    rows = last_positive(torch.randn(NUM_ROWS, *like.shape[1:], generator=generator, device="cpu"))
    return (rows if like.is_floating_point() else rows * 8).to(device=like.device, dtype=like.dtype)


def _rows_of_edges(data: Tensor, generator: torch.Generator) -> Tensor:
    """Rows for edge data: real ones where they are integers (types, ids), made-up weights otherwise."""
    if data.is_floating_point():
        return _made_up_rows(data, generator).abs() + 0.1
    return sampled_rows(data)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
