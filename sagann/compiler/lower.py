"""Lower: translate the operators of an edge stage into the ops of one edge function.

The stage runs on fake tensors. A mode sees every operator below autograd, takes composite operators apart, and translates
the others one by one. Dimension 0 of every tensor that is no parameter must be the rows. Another layout, or an operator
without a translation, raises :class:`sagann.compiler.lowering.NotFusedError`; the stage runs over edge tiles then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from sagann.compiler.composites import COMPOSITES, linear, most_lanes
from sagann.compiler.lowering import RULES, Lowering, NotFusedError, known, rounded_div
from sagann.compiler.operators import DROPOUT
from sagann.compiler.stages import OVERWRITING
from sagann.compiler.trace import PLAINER, without_log
from sagann.errors import in_one_line
from sagann.kernels import feature_rows
from sagann.kernels.accumulators import Gathering
from sagann.kernels.edge.function import EdgeFunction, Input, Side, lanes
from sagann.kernels.row_dropout import dropout

# Functions that stages run, and the operators that are traced in their place.
_AS_TRACED: dict[Any, Any] = {
    dropout: DROPOUT,
    feature_rows.linear: linear,
    **{overwriting: target for target, overwriting in OVERWRITING.items()},
}
_FORMS: dict[Any, Any] = {**PLAINER, **COMPOSITES}
"Operators that are taken apart."
_GIVE_NO_TENSOR = (torch.ops.prim.device.default, torch.ops.aten.sym_size.int)


def lower(stage: fx.GraphModule, inputs: Mapping[str, tuple[Side, Tensor]], gathering: Gathering) -> EdgeFunction:
    """Translate an edge stage, which computes the messages' values from its inputs: side and example of each, in order."""
    low, examples = Lowering(), []
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    for name, (side, like) in inputs.items():
        with fake:
            examples.append(torch.empty(like.shape, dtype=like.dtype, device=like.device))
        shape = tuple(like.shape if side == "param" else like.shape[1:])
        low.set_name(examples[-1], low.b.input(Input(name=name, side=side, shape=shape, dtype=known(like.dtype))))
    mode = _Translation(low)
    try:
        with fake, torch.no_grad(), without_log(), mode:
            results = _Operators(stage, mode).run(*examples)
    except NotFusedError:
        raise
    except Exception as error:
        if error is mode.own_error:
            raise
        raise NotFusedError(f"it cannot be traced: {in_one_line(error)}") from error
    values = [_row(low, value) for value in results]
    for message in gathering.reduced:
        *score, _ = values[message.values]
        if score and low.b.dtype(score[0]) == torch.float64:
            # Score and value are reduced in the value's type.
            last = message.values.stop - 1
            values[last] = low.b.cast(values[last], torch.float64)
    device = next((like.device for _, like in inputs.values()), torch.device("cpu"))
    return _narrow(low.b.build(gathering.outputs(values), "dst"), device)


def as_traced(target: Any) -> Any:
    """The operator in the place of a function that stages run; other targets as they are."""
    return _AS_TRACED.get(target, target)


def is_pointwise(target: Any) -> bool:
    """Whether a pointwise operator of a stage has a translation, for some operands at least."""
    target = as_traced(target)
    has_form = target in COMPOSITES or (target in RULES and RULES[target] is not rounded_div)
    return has_form and torch.Tag.pointwise in getattr(target, "tags", ())


class _Translation(TorchDispatchMode):
    """Translates every operator that runs below it."""

    def __init__(self, low: Lowering) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.low = low
        self.line = ""
        "The user's line, for messages."
        self.own_error: Exception | None = None
        "What a translation raised that is no refusal."

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _GIVE_NO_TENSOR:
            return func(*args, **kwargs)
        for form in (_FORMS.get(func), func.decompose):
            if form is not None:
                with self:
                    found = form(*args, **kwargs)
                if found is not NotImplemented:
                    return found
        out = func(*args, **kwargs)
        # Rules compute with numbers.
        with unset_fake_temporarily():
            try:
                self.low.set_name(out, self._translated(func, out, args, kwargs))
            except NotFusedError:
                raise
            except Exception as error:
                self.own_error = error
                raise
        return out

    def _translated(self, func: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        low = self.low
        low.target = func
        try:
            if func not in RULES:
                raise NotFusedError(f"operator {func} has no fused form")
            name = RULES[func](low, out, *args, **kwargs)
            if low.b.shape(name) != low.shape(out):
                forms = f"{list(low.b.shape(name))} where PyTorch gives {list(low.shape(out))}"
                raise NotFusedError(f"operator {func} has a fused form of other features: {forms}")
        except NotFusedError as error:
            raise NotFusedError(f"{error} ({self.line})" if self.line else str(error)) from error
        return name


class _Operators(fx.Interpreter):
    """Runs a stage, of which functions become operators again."""

    def __init__(self, stage: fx.GraphModule, mode: _Translation) -> None:
        super().__init__(stage)
        self.mode = mode
        # Errors have the user's line already.
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        self.mode.line = n.meta.get("line", "")
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(as_traced(target), args, kwargs)


def _row(low: Lowering, value: Any) -> str:
    """Name of a value that the stage gives, which must have a row per edge."""
    if not isinstance(value, Tensor):
        raise NotFusedError("apply_edge returns a constant")
    if not low.is_row(value):
        raise NotFusedError("apply_edge returns no row per edge")
    return low.name(value)


def _narrow(function: EdgeFunction, device: torch.device) -> EdgeFunction:
    """The function, if its rows are done tile by tile, or fit registers all at once."""
    most = most_lanes(device)
    if function.feature_width is None and (widest := max(map(lanes, function.values), default=0)) > most:
        raise NotFusedError(
            f"a row on the edges has {widest:,} features, of which an operator reads others than its own; up to {most:,} can be fused"
        )
    return function
