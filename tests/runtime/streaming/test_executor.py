"""Plans are executed step by step: every step leaves the numbers that plain PyTorch has for the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from sagann.compiler.model_program import ModelProgram
from sagann.compiler.program import EdgeWork
from sagann.errors import InputError
from sagann.graph.constant import declare_constant
from sagann.graph.feature_store import TensorRows
from sagann.kernels.edge.state import GatherState
from sagann.nn import GAT, GNN, SAGE
from sagann.plan.epoch import Planned
from sagann.plan.steps import Move, Step, StepKind
from sagann.runtime.blocks.backend import CpuBackend
from sagann.runtime.blocks.host import RamHost
from sagann.runtime.streaming.epoch import Epoch, LossOf
from sagann.runtime.streaming.executor import Executor
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import random_topology
from tests.runtime.streams import partial_loss, tight
from tests.tolerances import assert_close, largest

NUM_VERTICES, DIM, BOUNDS = 40, 6, (0, 15, 27, 40)
TOPOLOGY = random_topology(NUM_VERTICES, 200)


class Dense:
    """All values of a program and their gradients, by plain PyTorch on the whole graph."""

    def __init__(self, program: ModelProgram, model: nn.Module, x: Tensor) -> None:
        named = dict(model.named_parameters())
        given: dict[str, Tensor] = {name: named[parameter] for name, parameter in program.parameters}
        given |= program.param.run(given, _as_written)
        self.values = {"x": x}
        for number, stage in enumerate(program.stages):
            self.values |= stage.run(given | self.values, _as_written)
            if number < len(program.gathers):
                gather = program.gathers[number]
                ends = {"src": TOPOLOGY.indices.long(), "dst": TOPOLOGY.edge_dst()}
                rows = [
                    self.values[name][ends[side]] if side in ends else given[name]
                    for name, side in zip(gather.inputs, gather.edges.sides, strict=True)
                ]
                messages = gather.edges.stage.module.forward(*rows)
                self.values[gather.result] = gather.edges.gathering.gather(TOPOLOGY, messages)
        self.result = self.values[program.output]
        self.loss = partial_loss(self.result, slice(0, NUM_VERTICES))
        (self.upstream,) = torch.autograd.grad(self.loss, [self.result], retain_graph=True)
        self.of_parameters = torch.autograd.grad(self.loss, list(named.values()), retain_graph=True)
        self.named = list(named.items())
        recorded = {name: value for name, value in self.values.items() if value.requires_grad}
        found = torch.autograd.grad(self.loss, list(recorded.values()))
        self.gradients = dict(zip(recorded, found, strict=True))


def _as_written(work: EdgeWork, arrays: Sequence[Tensor]) -> Tensor:
    (result,) = work.stage.module.forward(*arrays)
    return result


class Watched:
    """Has an executor checked before and after each step.

    Args:
        executor: has run nothing yet.
        dense: its values and gradients.
    """

    def __init__(self, executor: Executor, dense: Dense) -> None:
        self.executor, self.dense = executor, dense
        self.seen: list[StepKind] = []
        self.sources: dict[tuple[int, int], list[int]] = {}
        "Source intervals that were gathered so far, by gather and destination interval."
        self.rows = executor.plan.vertices
        self.scale = largest(*dense.gradients.values()) if dense.gradients else 1.0
        self._last: Step | None = None
        resident = executor.resident
        begin, move = resident.begin, resident.move

        def begun(step: Step) -> None:
            self.end()
            begin(step)
            self._before(step)
            self._last = step

        def moved(operation: Move) -> None:
            self.end()
            move(operation)

        resident.begin, resident.move = begun, moved  # type: ignore[method-assign]

    def end(self) -> None:
        """Check what the last step has left."""
        step, self._last = self._last, None
        if step is not None:
            self.seen.append(step.kind)
            self._after(step)

    def _before(self, step: Step) -> None:
        for block in step.reads:
            # A step that writes a gradient too adds to it. Any other step reads all of it.
            if block.kind == "grad" and block not in step.writes:
                expected = self.dense.gradients[block.name][self.rows(block.interval)]
                assert_close(self.executor.resident[block], expected, scale=self.scale)

    def _after(self, step: Step) -> None:
        rows, resident, epoch = self.rows(step.interval), self.executor.resident, self.executor.epoch
        for block in step.writes:
            if block.kind == "value":
                assert_close(resident[block], self.dense.values[block.name][rows])
        if step.kind == "gather":
            self._after_chunk(step)
        elif step.kind == "output":
            assert_close(epoch.out[rows], self.dense.result[rows])
        elif step.kind == "transform_loss":
            assert_close(epoch.loss, partial_loss(self.dense.result[: rows.stop], slice(0, rows.stop)))
        elif step.kind == "store_constant":
            (block,) = step.reads
            assert_close(self.executor._constants.get(block)[""], self.dense.values[block.name][rows])
        elif step.kind == "output_grad":
            assert_close(epoch.of_x[rows], self.dense.gradients["x"][rows], scale=self.scale)

    def _after_chunk(self, step: Step) -> None:
        """A state has the sum of messages from the sources that were gathered so far, where it is a sum."""
        gather = self.executor.program.gathers[step.number]
        sources = self.sources.setdefault((step.number, step.dst_interval), [])
        sources.append(step.interval)
        (at,) = step.writes
        state: GatherState = self.executor.resident[at]
        if gather.edges.gathering.accumulators[0].name != "mean":
            return
        (name,) = gather.inputs
        value, dst = self.dense.values[name], self.rows(step.dst_interval)
        reached = torch.zeros(NUM_VERTICES, 1, dtype=value.dtype)
        for interval in sources:
            reached[self.rows(interval)] = 1
        ends = TOPOLOGY.indices.long(), TOPOLOGY.edge_dst()
        sums = torch.zeros_like(value).index_add_(0, ends[1], (value * reached)[ends[0]])
        (found,) = state.tensors().values()
        assert_close(found, sums[dst])


def model_of(layer: Callable[..., nn.Module]) -> GNN:
    torch.manual_seed(0)
    return GNN([layer(DIM, 8), layer(8, 4)]).double()  # type: ignore[list-item]


def features() -> Tensor:
    return torch.randn(NUM_VERTICES, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def watched(
    streamed: StreamedModel, planned: Planned, x: Tensor, constants: RamHost, loss_of: LossOf | None = None
) -> Watched:
    parameters = [each.detach().requires_grad_() for each in streamed.model.parameters()]
    executor = Executor(
        planned,
        chunks=streamed.chunks_of(planned.program),
        host=RamHost(),
        constants=constants,
        dialect="naive",
        seeds=[],
        seed=0,
        epoch=Epoch(x=TensorRows(x.detach()), parameters=parameters, trains=True, loss_of=loss_of),
        backend=CpuBackend(),
    )
    return Watched(executor, Dense(planned.program, streamed.model, x))


def assert_gradients_right(run: Watched) -> None:
    epoch, program = run.executor.epoch, run.executor.program
    found = epoch.parameter_gradients([name for name, _ in program.parameters], program.param.outputs)
    # The program lists parameters by its own names.
    order = [name for name, _ in run.dense.named]
    for (_, name), ours in zip(program.parameters, found, strict=True):
        assert ours is not None
        assert_close(ours, run.dense.of_parameters[order.index(name)], scale=run.scale)


@pytest.mark.parametrize("layer", [SAGE, GAT])
@pytest.mark.parametrize("folded", [False, True])
def test_every_step_of_an_epoch_has_the_numbers_of_plain_pytorch(
    layer: Callable[..., nn.Module], folded: bool
) -> None:
    model, x = model_of(layer), features().requires_grad_()
    streamed = tight(model, [TOPOLOGY, TOPOLOGY], x, "column", bounds=BOUNDS)
    planned = streamed.plan(x, folded=folded)
    assert planned.plan.stored_bytes > 0
    run = watched(streamed, planned, x, RamHost(), partial_loss if folded else None)
    result = run.executor.forward()
    run.end()
    if folded:
        assert_close(result, run.dense.loss.detach())
    else:
        assert_close(result, run.dense.result.detach())
        run.executor.epoch.upstream = TensorRows(run.dense.upstream)
    run.executor.backward()
    run.end()
    assert_close(run.executor.epoch.of_x, run.dense.gradients["x"], scale=run.scale)
    assert_gradients_right(run)
    steps = [each.kind for each in planned.plan.operations if isinstance(each, Step)]
    assert run.seen == [kind for kind in steps if kind != "return"]
    ends = {"transform_loss"} if folded else {"output"}
    of_workers = {"collect", "begin_exchange", "send_rows", "exchange", "exchange_grad", "collect_grad"}
    others = {
        "return",
        "store_constant",
        "transform_loss",
        "output",
        "stage",
        "means",
        "share_means",
        "share_means_grad",
        "means_grad",
    }
    assert set(run.seen) == set(get_args(StepKind)) - of_workers - others | ends
    with pytest.raises(InputError, match="a backward of a streamed model ran twice"):
        run.executor.backward()


def test_gathers_of_constant_features_are_stored_once_and_read_from_there() -> None:
    model, x = model_of(SAGE), declare_constant(features())
    streamed = StreamedModel(model, [TOPOLOGY, TOPOLOGY], BOUNDS, budget_bytes=1 << 20)
    planned = streamed.plan(x)
    program, constants = planned.program, RamHost()
    of_constants = streamed._planned_constants(program)
    first = watched(streamed, of_constants, x, constants)
    first.executor.keep_constants()
    first.end()
    assert first.seen.count("store_constant") == len(BOUNDS) - 1
    run = watched(streamed, planned, x, constants)
    run.executor.forward()
    run.executor.epoch.upstream = TensorRows(run.dense.upstream)
    run.executor.backward()
    run.end()
    assert_gradients_right(run)
    kept = {gather.result for gather in program.gathers if gather.constant}
    assert kept
    finished = [each for each in planned.plan.operations if isinstance(each, Step) and each.kind == "finish"]
    assert kept.isdisjoint(program.gathers[step.number].result for step in finished)


def test_an_executor_that_fails_keeps_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = model_of(SAGE), features().requires_grad_()
    streamed = tight(model, [TOPOLOGY, TOPOLOGY], x, "column", bounds=BOUNDS)
    run = watched(streamed, streamed.plan(x), x, RamHost())

    def failing(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run.executor, "_finish", failing)
    with pytest.raises(KeyboardInterrupt):
        run.executor.forward()
    assert not run.executor.resident._blocks
