"""A model over one graph that is run by intervals, inside a memory budget, with the numbers of a dense run.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2; Ma et al., NGra, 2018, Sec. 3.1. No public system does this for an
    ordinary model.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from sagann.compiler.model_program import ModelProgram
from sagann.compiler.options import CompilerOptions
from sagann.compiler.trace import tensors_of
from sagann.errors import InputError, LayerError, require_type
from sagann.graph.topology import Topology, for_training_as_well
from sagann.graph.versions import version_of
from sagann.kernels.dialects import check_dialect
from sagann.kernels.seeds import drawn_seed
from sagann.plan.choose_intervals import Cut, edges_bytes, fitted_bounds
from sagann.plan.constants import plan_constants
from sagann.plan.edges_of_type import EdgesOfType, Hop, gathered_hops, topology_of
from sagann.plan.epoch import Planned, plan_epoch
from sagann.plan.gradients import Gradients
from sagann.plan.grid import CUT_BYTES, MOST_EDGES, ChunkGrid
from sagann.plan.memory import require_memory_policy
from sagann.plan.orders import Order, require_order
from sagann.plan.residency import BudgetError
from sagann.plan.selection import NEVER, Selection
from sagann.plan.sizes import HopSize
from sagann.plan.steps import UNLIMITED, MemoryPolicy
from sagann.plan.visits import Visits
from sagann.runtime.blocks.backend import Backend, CpuBackend
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import Host, SharedHost
from sagann.runtime.blocks.scratch import Scratch
from sagann.runtime.blocks.spill import SpillFolder
from sagann.runtime.in_memory.configuration import configuration
from sagann.runtime.places import require_on_host, require_places
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.call import SHRINK, Call, DeviceMemoryError, Streamed, warn_of_less
from sagann.runtime.streaming.capturing import (
    captured,
    edge_data_of,
    like_on,
    require_constant_edges,
    require_types,
    trained_in,
)
from sagann.runtime.streaming.epoch import Epoch, LossOf
from sagann.runtime.streaming.executor import Executor
from sagann.saga.hooks import has_hooks
from sagann.saga.shared_lock import MODELS
from sagann.storage.mapped import MappedRows, mapped_rows

MOST_PROGRAMS = 4
"Captured programs that are kept: for training and evaluation, with and without a gradient of the features."


class _Kept(NamedTuple):
    """What programs with the same constants have the same in every epoch."""

    x: weakref.ref[Tensor]
    "The features that it is of."
    version: int
    "Version of the features when the blocks were made."
    host: Host
    "Host that holds the blocks."


class _Features(NamedTuple):
    """Where features are read from."""

    x: weakref.ref[Tensor]
    "The features."
    version: int
    "Version of the features when their file was looked up."
    rows: MappedRows | None
    "Reader of the features' file; None where features are read in memory."


class StreamedModel(nn.Module):
    """A model over one graph, run by intervals: ``streamed(x)`` is ``model(hops, x)``, and trains as that does.

    Args:
        model: an ordinary module of SAGA layers and operators on rows. Its parameters stay its own.
        hops: the topologies that it walks; for a whole graph ``graph.hops(k)``.
        bounds: of the intervals, as :mod:`sagann.plan.intervals` gives them; (0, n) is the dense run.
        spill: a folder for what is not in use; without it, that lies in memory too, beyond the budget.
        budget_bytes: what blocks and temporaries may take together; parameters, and what lies on the host, come on top.
        trains: whether it may be trained; else its intervals need not leave room for that.
        options: what the compiler may do to a layer.
        dialect: kernels of the edges.
        order: in which passes go through the chunk grid.
        selection: which rows are picked for chunks.
        visits: in which order passes go over the intervals; by default as :func:`sagann.plan.epoch.plan_epoch` chooses.
        memory_policy: which blocks the device keeps (:mod:`sagann.plan.memory`).
        cut: what intervals have equally many of, where the device runs out of memory and there must be more of them.
        backend: what computes; by default the CPU. Hops and features lie on the host all the same, parameters on its
            device.

    Calls raise LayerError where the model mixes vertices between its layers or has a layer that cannot be fused, BudgetError
    where a step needs more than the budget, and InputError within autocast.

    Raises:
        InputError: there is no such order or dialect, or the model or the hops lie elsewhere.
    """

    def __init__(
        self,
        model: nn.Module,
        hops: Sequence[Topology],
        bounds: Sequence[int],
        *,
        budget_bytes: int = UNLIMITED,
        spill: Path | None = None,
        trains: bool = True,
        options: CompilerOptions | None = None,
        dialect: str = "auto",
        order: Order = "column",
        selection: Selection = NEVER,
        visits: Visits | None = None,
        memory_policy: MemoryPolicy = "belady",
        cut: Cut = "bytes",
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        require_order(order)
        require_memory_policy(memory_policy)
        check_dialect(dialect)
        self.model = model
        self._backend = backend or CpuBackend()
        require_places(model, hops, self._backend.device)
        self.hops = list(hops)
        self.bounds = tuple(bounds)
        self.budget_bytes = budget_bytes
        self.trains = trains
        self.options = options
        self.dialect = dialect
        self.order = order
        self.selection = selection
        self.visits = visits
        self.memory_policy: MemoryPolicy = memory_policy
        self._cut: Cut = cut
        self.timeline: Recorder | None = None
        "Where epochs are recorded as they run; set it for those of interest."
        self._folder = None if spill is None else SpillFolder(spill)
        self._same_memory = self._backend.shares_memory(on_disk=spill is not None)
        on_host = self._backend.device.type == "cpu"
        self._scratch = None if spill is None or not on_host else Scratch(spill)
        self._edges = self._new_edges()
        self._chunks: dict[object, Chunks] = {}
        "By hop, or by topology and type."
        self._numbers = count()
        "Of chunks; those of calls under way may outlive a cut."
        self._programs: dict[object, ModelProgram] = {}
        self._plans: dict[tuple[object, ...], Planned] = {}
        self._kept: dict[object, _Kept] = {}
        self._features: _Features | None = None
        self._edge_versions: dict[int, int] = {}
        "Of the edge data as it was cut, by its address."
        self._has_shrunk = False

    def _new_edges(self) -> Host | None:
        """Where chunks are kept; None where they are read as they are."""
        reads_in_place = self.budget_bytes >= UNLIMITED and self._folder is None and self._backend.copies_rows
        return None if reads_in_place else self._new_host()

    def forward(self, x: Tensor) -> Tensor:
        """The model's result for all vertices: [num_vertices, ...]. With a spill folder it lies on that folder's disk."""
        return self._run(x, None)

    def loss(self, x: Tensor, loss_of: LossOf) -> Tensor:
        """A loss that is a sum over vertices, without the model's result ever being whole in memory.

        Args:
            x: vertex features.
            loss_of: gives the loss of some vertices, a scalar, from their rows of the result and their range of ids.
                It may read nothing that is trained but these rows, and not change them in place.
        Returns:
            The sum over all intervals; its backward is as that of any loss.
        Raises:
            InputError: ``loss_of`` reads something else that is trained.

        Example:
            >>> from sagann.graph import demo_graph
            >>> from sagann.nn import GNN, SAGE
            >>> graph = demo_graph()
            >>> from sagann.runtime.streaming.stream import stream
            >>> streamed = stream(GNN([SAGE(graph.num_features, graph.num_classes)]), graph, budget_bytes=1 << 20)
            >>> def loss_of(z: Tensor, vertices: slice) -> Tensor:
            ...     return torch.nn.functional.cross_entropy(z, graph.labels[vertices], reduction="sum") / len(graph.labels)
            >>> streamed.loss(graph.features, loss_of).backward()
        """
        return self._run(x, loss_of)

    def plan(self, x: Tensor, *, folded: bool = False) -> Planned:
        """What a call with such features does: an epoch where gradients are recorded, else a forward.

        Args:
            x: vertex features.
            folded: whether :meth:`loss` is what is called.
        """
        self._check(x)
        require_constant_edges(self.hops)
        with MODELS.changing():
            return self._planned(x, folded)

    def _planned(self, x: Tensor, folded: bool) -> Planned:
        program = self._captured(x)
        self._see_changes(program)
        trained = trained_in(program, self.model)
        trains = torch.is_grad_enabled() and (x.requires_grad or bool(trained))
        if trains and not self.trains:
            raise InputError(
                "the model is streamed to be evaluated only",
                value="gradients are recorded",
                where="StreamedModel",
                fix="Call it within torch.no_grad(), or stream it with trains=True.",
            )
        # What is copied in any case need not be looked up.
        has_mapped_x = self._same_memory and self._mapped(x) is not None
        key = (id(program), x.requires_grad, has_mapped_x, trained, trains, folded)
        if key not in self._plans:
            gradients = Gradients(program, wanted_x=x.requires_grad, trained=trained)
            self._plans[key] = plan_epoch(
                program,
                self._sizes(program),
                self.bounds,
                self.budget_bytes,
                gradients=gradients,
                trains=trains,
                folded=folded,
                order=self.order,
                selection=self.selection,
                visits=self.visits,
                memory_policy=self.memory_policy,
                same_memory=self._same_memory,
                has_mapped_x=has_mapped_x,
            )
            if self._folder is not None:
                kept = 0 if program.constants in self._kept else self._plans[key].schedule.constant_bytes
                self._folder.require(self._plans[key].plan.spilled_bytes + kept)
        return self._plans[key]

    def _sizes(self, program: ModelProgram) -> dict[int, HopSize]:
        """The sizes of the chunks that the program's gathers go over, by numbers of hops."""
        grain = self._backend.grain
        return {number: replace(chunks.size, grain=grain) for number, chunks in self.chunks_of(program).items()}

    def _see_changes(self, program: ModelProgram) -> None:
        """Cut anew where edge data was changed in place. Calls under way keep what they began with."""
        versions = {id(data): version_of(data) for data in edge_data_of(program, self.hops)}
        if any(self._edge_versions.get(key, version) != version for key, version in versions.items()):
            self._edge_versions.clear()
            self._cut_anew()
        self._edge_versions |= versions

    def _cut_anew(self) -> None:
        self._plans.clear()
        self._kept.clear()
        # Before there are others: both need not fit.
        self._chunks = {}
        self._backend.forget_chunks()
        self._edges = self._new_edges()

    def _check(self, x: Tensor) -> None:
        fix = "Pass a tensor with a row for every vertex of the graph that the model is streamed over."
        require_type(x, Tensor, where="StreamedModel.x", fix=fix)
        require_on_host(x.device, "features")
        if torch.is_autocast_enabled(self._backend.device.type):
            raise InputError(
                "a streamed model does not run under autocast",
                value="its backward computes again what its forward did, outside of it",
                where="StreamedModel",
                fix="Call it outside of autocast, or convert model and features: model.bfloat16(), x.bfloat16().",
            )
        num_vertices = self.bounds[-1]
        is_sparse = x.layout == torch.sparse_csr and self._backend.device.type == "cpu" and not x.requires_grad
        if (x.layout == torch.strided or is_sparse) and x.dim() > 0 and len(x) == num_vertices:
            return
        raise InputError(
            "vertex features do not fit the graph",
            value=f"{list(x.shape)} of layout {x.layout}, expected rows of {num_vertices} vertices, dense or (on the CPU, without a gradient) torch.sparse_csr",
            where="StreamedModel.x",
            fix=fix,
        )

    def _run(self, x: Tensor, loss_of: LossOf | None) -> Tensor:
        plan = self.plan(x, folded=loss_of is not None)
        with MODELS.reading():
            named = tensors_of(self.model)
        program = plan.program
        # Where nothing is random, the caller's random numbers are left as they are.
        seeds = [drawn_seed() for _ in range(program.num_seeds)]
        seed = drawn_seed() if program.draws_more else 0
        parameters = [named[name] for _, name in program.parameters]
        records = torch.is_grad_enabled()
        trains = records and any(each.requires_grad for each in (x, *parameters))

        def begin() -> Executor:
            leaves = [each.detach().requires_grad_(trains and each.requires_grad) for each in parameters]
            epoch = Epoch(
                x=x.detach(),
                mapped=self._mapped(x),
                parameters=leaves,
                trains=trains,
                loss_of=loss_of,
                allocate=self._scratch,
            )
            with torch.set_grad_enabled(records):
                plan = self.plan(x, folded=loss_of is not None)
            return self._executor(plan, epoch, self._constants(program, x), seeds=seeds, seed=seed)

        def shrink(error: BaseException, keeps_intervals: bool) -> None:
            with torch.set_grad_enabled(records):
                self._shrink(error, x, folded=loss_of is not None, keeps_intervals=keeps_intervals)

        # Changed by the caller before the backward, they are refused.
        read = [data for data in edge_data_of(program, self.hops) if not data.is_inference()]
        call = Call(begin, shrink, read=read, device=self._backend.device, has_own_numbers=_depends_on_cut(program))
        out: Tensor = Streamed.apply(call, x, *parameters)  # type: ignore[no-untyped-call]
        if not out.requires_grad:
            assert call.executor is not None
            call.executor.close()
        return out

    def _shrink(self, error: BaseException, x: Tensor, *, folded: bool, keeps_intervals: bool) -> None:
        """Plan with less memory, once; cut anew where that takes more intervals.

        Raises:
            DeviceMemoryError: it was done before, or cannot be done.
        """
        if self._has_shrunk:
            fix = f"Lower the budget below {self.budget_bytes} bytes, or end what else takes the device's memory."
            raise DeviceMemoryError.after(self.budget_bytes, error, fix) from error
        self._has_shrunk = True
        # Half of what is not used up would change nothing.
        before = min(self.budget_bytes, self.plan(x, folded=folded).plan.peak_bytes)
        self._backend.release()
        self.budget_bytes = before // SHRINK
        self._plans.clear()
        self._kept.clear()
        try:
            try:
                self._require_fit(x, folded)
            except BudgetError:
                if keeps_intervals:
                    raise
                self._cut_finer(x)
                self._require_fit(x, folded)
        except BudgetError as unmet:
            fix = f"At least {unmet.needed_bytes} bytes must be free" + (
                ", as random numbers in its backward do not let the graph be cut anew." if keeps_intervals else "."
            )
            raise DeviceMemoryError.after(before, error, fix) from error
        warn_of_less(before, self.budget_bytes, len(self.bounds) - 1, error)

    def _require_fit(self, x: Tensor, folded: bool) -> None:
        """Plan a call, and what is computed once before it.

        Raises:
            BudgetError: a step of either needs more than the budget.
        """
        self._planned_constants(self.plan(x, folded=folded).program)

    def _cut_finer(self, x: Tensor) -> None:
        """Cut into as many intervals as the budget asks for."""
        with MODELS.changing():
            program = self._captured(x)
        # Whatever is trained later.
        gradients = Gradients(program, wanted_x=x.requires_grad)
        self.bounds = fitted_bounds(
            program,
            self.hops,
            self.budget_bytes,
            gradients=gradients,
            trains=self.trains,
            cut=self._cut,
            order=self.order,
            grain=self._backend.grain,
            same_memory=self._same_memory,
        )
        # Strips and orders are of other intervals.
        self.visits = None
        self._cut_anew()

    def _executor(
        self, plan: Planned, epoch: Epoch, constants: Host, *, seeds: Sequence[int] = (), seed: int = 0
    ) -> Executor:
        return Executor(
            plan.program,
            plan.schedule,
            plan.plan,
            chunks=self.chunks_of(plan.program),
            host=self._new_host(),
            constants=constants,
            dialect=self.dialect,
            seeds=seeds,
            seed=seed,
            epoch=epoch,
            backend=self._backend,
            timeline=self.timeline,
        )

    def _constants(self, program: ModelProgram, x: Tensor) -> Host:
        """What is the same in every epoch; computed when there are new features."""
        known = self._kept.get(program.constants)
        if known is not None and known.x() is x and known.version == version_of(x):
            return known.host
        shares = self.budget_bytes >= UNLIMITED and self._folder is None
        host = SharedHost() if shares else self._new_host()
        if any(gather.constant for gather in program.gathers):
            self._kept.pop(program.constants, None)
            plan = self._planned_constants(program)
            with MODELS.reading():
                named = tensors_of(self.model)
            parameters = [named[name].detach() for _, name in program.parameters]
            epoch = Epoch(x=x.detach(), mapped=self._mapped(x), parameters=parameters, trains=False)
            with for_training_as_well():
                self._executor(plan, epoch, host).keep_constants()
            self._kept[program.constants] = _Kept(x=weakref.ref(x), version=version_of(x), host=host)
        return host

    def _planned_constants(self, program: ModelProgram) -> Planned:
        return plan_constants(
            program,
            self._sizes(program),
            self.bounds,
            self.budget_bytes,
            self.selection,
            memory_policy=self.memory_policy,
            same_memory=self._same_memory,
        )

    def chunks_of(self, program: ModelProgram) -> dict[int, Chunks]:
        """The chunks that the program's gathers go over, by numbers of hops; cut where they are not yet.

        Args:
            program: the model, captured.
        Raises:
            SpillError: there is too little room for them.
        """
        require_types(program, self.hops)
        hops = gathered_hops(program, self.hops)
        missing = {_key(hop): hop for hop in hops.values() if _key(hop) not in self._chunks}
        if self._folder is not None and missing:
            self._folder.require(edges_bytes(missing.values(), self.bounds))
        for key, hop in missing.items():
            grid = ChunkGrid(hop, self.bounds, most_edges=min(MOST_EDGES, self.budget_bytes // CUT_BYTES))
            self._chunks[key] = Chunks(grid, self._edges, next(self._numbers), self.selection)
            for data in topology_of(hop).edge_data.values():
                self._edge_versions.setdefault(id(data), version_of(data))
        return {number: self._chunks[_key(hop)] for number, hop in hops.items()}

    def _mapped(self, x: Tensor) -> MappedRows | None:
        """What reads these features from their file; looked up when there are new ones."""
        if self.budget_bytes >= UNLIMITED or x.layout != torch.strided:
            return None
        known = self._features
        version = version_of(x)
        if known is None or known.x() is not x or known.version != version or version < 0:
            known = self._features = _Features(x=weakref.ref(x), version=version, rows=mapped_rows(x.detach()))
        return known.rows

    def close(self) -> None:
        """Remove the spill folder, if there is one; the model cannot run by intervals after that. Without one nothing changes."""
        if self._folder is not None:
            self._folder.close()

    def __deepcopy__(self, memo: object) -> StreamedModel:
        raise _uncopyable()

    def __reduce__(self) -> NoReturn:
        raise _uncopyable()

    def _new_host(self) -> Host:
        return self._backend.new_host(self._folder)

    def _captured(self, x: Tensor) -> ModelProgram:
        if has_hooks(self.model.modules()):
            raise LayerError(
                "a model that is streamed cannot have hooks",
                value="a module has one",
                where=type(self.model).__name__,
                fix="Remove it: the model's own forward does not run.",
            )
        # Tensors made in inference mode count no versions.
        constant = not x.requires_grad and not x.is_inference()
        key = (configuration(self.model), x.shape[1:], x.layout, x.dtype, x.device, constant)
        if key not in self._programs:
            if len(self._programs) == MOST_PROGRAMS:
                self._forget(next(iter(self._programs)))
            like = like_on(x, self._backend.device)
            self._programs[key] = captured(self.model, self.hops, like, self.options, x_is_constant=constant)
        return self._programs[key]

    def _forget(self, key: object) -> None:
        program = self._programs.pop(key)
        if all(other.constants != program.constants for other in self._programs.values()):
            self._kept.pop(program.constants, None)
        self._plans = {known: plan for known, plan in self._plans.items() if known[0] != id(program)}


def _key(hop: Hop) -> object:
    return (id(hop.topology), hop.data, hop.type) if isinstance(hop, EdgesOfType) else id(hop)


def _uncopyable() -> InputError:
    return InputError(
        "a streamed model cannot be copied",
        value="it has threads, and files of its own",
        where="StreamedModel",
        fix="Copy or save its .model, and stream that again.",
    )


def _depends_on_cut(program: ModelProgram) -> bool:
    """Whether random numbers of the program change with the intervals: those of dropouts belong to vertices, and do not."""
    return program.draws_more or any(gather.edges.random for gather in program.gathers)
