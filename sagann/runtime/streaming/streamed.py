"""A model over one graph that is run by intervals, inside a memory budget, with the numbers of a dense run.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2; Ma et al., NGra, 2018, Sec. 3.1. No public system does this for an
    ordinary model.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from sagann.byte_size import with_exact
from sagann.compiler.model_program import ModelProgram
from sagann.compiler.trace import tensors_of
from sagann.errors import InputError, LayerError, require_choice
from sagann.graph.feature_store import Features, FeatureStore, TensorRows, feature_store
from sagann.graph.topology import Topology, for_training_as_well
from sagann.kernels.edge import check_dialect
from sagann.kernels.packed import Layout
from sagann.kernels.seeds import drawn_seed
from sagann.plan.epoch import MEMORY_POLICIES, MemoryPolicy, Planned, plan_constants, plan_epoch
from sagann.plan.fit import fitted_intervals
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.intervals import PartIntervals, dealing
from sagann.plan.residency import BudgetError
from sagann.plan.selection import NEVER, Selection
from sagann.plan.steps import ALL, UNLIMITED, Block, Move
from sagann.plan.sweeps import Traversal
from sagann.runtime.backend import Backend
from sagann.runtime.blocks.chunks import Chunks, CutHops
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.residents import Exchange, nothing
from sagann.runtime.blocks.sources import Stayed
from sagann.runtime.blocks.spill import Scratch, require_room, unnamed_file
from sagann.runtime.moments import Moments
from sagann.runtime.places import require_places
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.call import Call, DeviceMemoryError, Streamed, warn_of_less
from sagann.runtime.streaming.capturing import (
    are_constant,
    captured,
    check_features,
    edge_data_of,
    feature_version,
    like_on,
    needs_gradient,
    trained_in,
)
from sagann.runtime.streaming.epoch import Epoch, LossOf
from sagann.runtime.streaming.executor import Executor
from sagann.saga.shared_lock import MODELS
from sagann.saga.side_effects import has_hooks
from sagann.storage.mapped import positioned

_VERSIONS = count()
"Of all streamed models: one that is closed may be followed by another."
MOST_PLANS = 16
"Plans kept per model; the oldest goes first."


def why_queued(planned: Planned, x: Features, *, on_disk: bool) -> str | None:
    """Why a device's epochs are not recorded, as far as their plan and features say; None where that is tried."""
    if on_disk:
        return "blocks lie in files of the spill folder"
    if not isinstance(positioned(x), TensorRows):
        return "the features are read from a file"
    if any(size.needed for size in planned.schedule.sizes.hops.values()):
        return "the host picks the rows that some chunks need"
    return "the model draws random numbers besides dropout's" if planned.program.draws_more else None


class _Kept(NamedTuple):
    """Blocks that are the same in every epoch, on a host, and the features with the version that they were made of."""

    x: Callable[[], object]
    version: int
    host: Host


def _known_by(x: Features) -> Callable[[], object]:
    """Refers to features without keeping them alive, unless the class of a store allows no weak references (``__slots__``)."""
    return weakref.ref(x) if type(x).__weakrefoffset__ else lambda: x


class StreamedModel(nn.Module):
    """A model over one graph, run by intervals: ``streamed(x)`` is ``model(hops, x)``, and trains as that does.

    Args:
        model: an ordinary module of SAGA layers and operators on rows. Its parameters stay its own.
        hops: the topologies that it walks; for a whole graph ``graph.hops(k)``.
        bounds: bounds of the intervals (:mod:`sagann.plan.intervals`); (0, n) is the dense run.
        budget_bytes: most bytes of blocks and temporary memory together. Parameters, and blocks on the host, come on top.
        spill: folder for blocks that are not in use; without it, they lie in memory, beyond the budget.
        trains: whether the model may be trained; otherwise intervals leave no room for gradients.
        dialect: kernels of the edges.
        selection: which rows are picked for chunks.
        traversal: order in which passes go over the intervals; by default as :func:`sagann.plan.epoch.plan_epoch` chooses.
        memory_policy: which blocks the device keeps (:data:`sagann.plan.epoch.MemoryPolicy`).
        backend: devices that compute, by default the CPU. Parameters lie on the first one; hops and features lie on the host.
        part: intervals with the same bounds: of a worker's part, dealt to several devices, or with what lies undivided; None for a whole graph
            that is cut at both ends.
        exchange: sends and receives rows of the halo of a worker's part.

    Calls raise LayerError if the model mixes vertices between its layers or has a layer that cannot be fused, BudgetError if a
    step needs more than the budget, and InputError within autocast.

    Raises:
        InputError: the memory policy or dialect does not exist, or the model or the hops lie elsewhere.
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
        dialect: str = "auto",
        selection: Selection = NEVER,
        traversal: Traversal | None = None,
        memory_policy: MemoryPolicy = "belady",
        backend: Backend | None = None,
        part: PartIntervals | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        super().__init__()
        check_dialect(dialect)
        self.model = model
        self._backend = backend or Backend()
        of_several, policies = len(self._backend.devices) > 1, tuple(MEMORY_POLICIES)
        what = "no memory policy of several devices" if of_several else "unknown memory policy"
        where = "stream.memory_policy"
        require_choice(memory_policy, policies[:1] if of_several else policies, what=what, where=where)
        require_places(model, hops, self._backend.device)
        self.hops = list(hops)
        self.bounds = tuple(bounds)
        dealt = replace(PartIntervals.of_graph(bounds), devices=self._backend.names)
        self._part, self._exchange = part or dealt, exchange or Exchange()
        self.budget_bytes = budget_bytes
        self.trains = trains
        self.dialect = dialect
        self.selection = selection
        self.traversal = traversal
        self.memory_policy: MemoryPolicy = memory_policy
        self.timeline: Recorder | None = None
        "Recorder of the epochs that run; None to record none."
        # The thread whose calls may be recorded.
        self._recorded_by: int | None = None
        # The process may change its working folder.
        self._folder = None if spill is None else spill.absolute()
        if self._folder is not None:
            unnamed_file(self._folder).close()
        self._beside = self._backend.beside(on_disk=spill is not None)
        on_host = self._backend.device.type == "cpu"
        self._scratch = None if spill is None or not on_host else Scratch(spill)
        self._numbers = count()
        self._cut_anew()
        self._has_shrunk = False

    def _cut_anew(self) -> None:
        """Forget the chunks, and all that was made of them; calls under way keep theirs."""
        self._forget_plans()
        self._kept: dict[object, _Kept] = {}
        reads_in_place = self.budget_bytes >= UNLIMITED and not self._beside.copies_beside
        self._chunks = CutHops(
            self.hops,
            budget_bytes=self.budget_bytes,
            host=None if reads_in_place else self._new_host(),
            cutting=self._backend.cutting,
            grain=self._beside.grain,
            folder=self._folder,
            selection=self.selection,
            numbers=self._numbers,
        )

    def _forget_plans(self) -> None:
        self._plans: dict[tuple[object, ...], Planned] = {}
        # By plan, where its blocks lie from call to call.
        self._lasting: dict[int, tuple[Planned, Host]] = {}
        # By what they are of, the blocks that stay in memory from call to call, and those that do now.
        self._chosen: dict[object, tuple[Move, ...]] = {}
        self._stayed: tuple[object, Callable[[], object], Stayed] = (None, nothing, {})
        self.version = next(_VERSIONS)
        "Changes with what a recording has baked in: chunks, plans and memory for blocks."

    def forward(self, x: Features) -> Tensor:
        """The model's result for all vertices: [num_vertices, ...]. With a spill folder, it lies on that folder's disk."""
        return self._run(x, None)

    def loss(self, x: Features, loss_of: LossOf) -> Tensor:
        """A loss that is a sum over vertices, without the model's result ever being whole in memory.

        Args:
            x: vertex features.
            loss_of: gives the loss of some vertices, a scalar, from their rows of the result and their range of ids. It must
                read no other tensor that is trained, and must not modify the rows in place.
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

    def plan(self, x: Features, *, folded: bool = False) -> Planned:
        """The plan of a call, or of :meth:`loss` if ``folded``: of an epoch where gradients are recorded, else of a forward."""
        self._check(x)
        with MODELS.changing():
            return self._planned(x, folded)

    def _planned(self, x: Features, folded: bool) -> Planned:
        program = self._captured(x)
        if self._chunks.are_stale(program):
            self._cut_anew()
        trained = trained_in(program, self.model)
        trains = torch.is_grad_enabled() and (needs_gradient(x) or bool(trained))
        if trains and not self.trains:
            raise InputError(
                "the model is streamed to be evaluated only: gradients are recorded (in StreamedModel)",
                hint="Call it within torch.no_grad(), or stream it with trains=True.",
            )
        # Rows that come from a file, or are computed, take room; rows of a tensor in memory are read where they lie.
        is_read = not self._beside.has_engines and not isinstance(self._store_of(x), TensorRows)
        key = (id(program), needs_gradient(x), is_read, trained, trains, folded)
        if key not in self._plans:
            gradients = Gradients(program, wanted_x=needs_gradient(x), trained=trained)
            if len(self._plans) == MOST_PLANS:
                self._forget_oldest()
            planned = self._plans[key] = self._planned_over(
                program,
                x,
                gradients=gradients,
                trains=trains,
                folded=folded,
                selection=self.selection,
                traversal=self.traversal,
                memory_policy=self.memory_policy,
                beside=self._beside,
                has_mapped_x=is_read,
                route=self._backend.route,
            )
            if self._folder is not None:
                kept = 0 if program.constants in self._kept else planned.schedule.constant_bytes
                require_room(self._folder, planned.plan.spilled_bytes + planned.received_bytes + kept)
        return self._plans[key]

    def _planned_over(self, program: ModelProgram, x: Features, **given: Any) -> Planned:
        """A plan of undivided rows if the intervals were cut for that, and it fits this program."""
        square = self._part.square
        # Whatever is trained later.
        undivided = (
            undivided_of(program, Gradients(program, wanted_x=needs_gradient(x))) if self._part.undivided else None
        )
        if undivided:
            part = replace(self._part, undivided=undivided)
            with suppress(BudgetError):
                return self._planned_with(program, part, **given)
        return self._planned_with(program, square, **given)

    def _planned_with(self, program: ModelProgram, part: PartIntervals, *, trains: bool, **given: Any) -> Planned:
        """A plan over a part. Plans that read the same constants keep the same blocks, so that an evaluation evicts none of those of epochs."""
        read, sizes = self._read_by(program, part), self._chunks.sizes(program, part)
        decides = read not in self._chosen and (trains or not self.trains)
        staying = None if decides else self._chosen.get(read, ())
        found = plan_epoch(program, sizes, part, self.budget_bytes, trains=trains, staying=staying, **given)
        if decides and (staying := found.plan.staying):
            # Evaluations that are planned already know nothing of these.
            self._forget_plans()
            self._chosen[read] = staying
        return found

    def _read_by(self, program: ModelProgram, part: PartIntervals) -> object:
        """What the constant blocks of a plan are of, besides features: plans with equal keys have the same under the same names."""
        chunks = tuple((number, id(each)) for number, each in self._chunks.of(program, part).items())
        constant = {"x", *(gather.result for gather in program.gathers if gather.constant)}
        # Other values may have other names in an evaluation.
        undivided = frozenset(each for each in part.undivided if each[1] in constant)
        return program.constants, program.forms["x"], part.bounds, undivided, chunks

    def _forget_oldest(self) -> None:
        """Forget the oldest plan, and the constants of its program that no other plan reads."""
        oldest = self._plans.pop(next(iter(self._plans)))
        self._lasting.pop(id(oldest), None)
        self.version = next(_VERSIONS)
        read = {planned.program.constants for planned in self._plans.values()}
        self._kept = {constants: kept for constants, kept in self._kept.items() if constants in read}

    def _check(self, x: Features) -> None:
        check_features(x, self._part.num_vertices, self._backend.device)
        if torch.is_autocast_enabled(self._backend.device.type):
            raise InputError(
                "a streamed model does not run under autocast: its backward computes again what its forward "
                "did, outside of it (in StreamedModel)",
                hint="Call it outside of autocast, or convert model and features: model.bfloat16(), x.bfloat16().",
            )

    def _run(self, x: Features, loss_of: LossOf | None) -> Tensor:
        plan = self.plan(x, folded=loss_of is not None)
        with MODELS.reading():
            named = tensors_of(self.model)
        program = plan.program
        # Without randomness in the program, the caller's random generator is not used.
        seeds = [drawn_seed() for _ in range(program.num_seeds)]
        seed = int(drawn_seed()) if program.draws_more else 0
        parameters = [named[name] for _, name in program.parameters]
        records = torch.is_grad_enabled()
        trains = records and (needs_gradient(x) or any(each.requires_grad for each in parameters))

        def begin() -> Executor:
            leaves = [each.detach().requires_grad_(trains and each.requires_grad) for each in parameters]
            store = self._store_of(x)
            epoch = Epoch(
                x=store,
                parameters=leaves,
                trains=trains,
                seeds=seeds,
                seed=seed,
                loss_of=loss_of,
                allocate=self._scratch,
            )
            with torch.set_grad_enabled(records):
                plan = self.plan(x, folded=loss_of is not None)
            chunks = self._chunks.of(program, plan.schedule.part)
            if isinstance(store, TensorRows):
                self._backend.pin(store.tensor)
            host, constants = self._host_of(plan), self._constants(program, x)
            return self._executor(plan, chunks, epoch, host, constants, self._staying(plan, x))

        def shrink(error: BaseException) -> None:
            with torch.set_grad_enabled(records):
                self._shrink(error, x, folded=loss_of is not None)

        # The backward refuses edge data that the caller has changed.
        read = [data for data in edge_data_of(program, self.hops) if not data.is_inference()]
        call = Call(begin, shrink, hops=self.hops, read=read)
        out: Tensor = Streamed.apply(call, x if isinstance(x, Tensor) else None, *parameters)  # type: ignore[no-untyped-call]
        if moments := call.executor.epoch.first.moments:
            self._move_running_means(program, moments)
        if not out.requires_grad:
            call.executor.close()
        return out

    def _move_running_means(self, program: ModelProgram, moments: Mapping[int, Moments]) -> None:
        """What BatchNorms that are trained do in a forward."""
        with torch.no_grad(), MODELS.changing():
            for number, found in sorted(moments.items()):
                found.update(self.model.get_submodule(program.mean(number).norm))

    def _shrink(self, error: BaseException, x: Features, *, folded: bool) -> None:
        """Plan with half the memory, once; cut the graph anew where that takes more intervals."""
        if self._backend.is_recording:
            raise error
        if self._has_shrunk:
            raise DeviceMemoryError.after(self.budget_bytes, error) from error
        self._has_shrunk = True
        # To halve a budget that is not used up would change nothing.
        before = min(self.budget_bytes, self.plan(x, folded=folded).plan.peak_bytes)
        self.budget_bytes = before // 2
        self._forget_plans()
        self._backend.release()
        self._kept.clear()
        try:
            try:
                self._require_fit(x, folded)
            except BudgetError:
                self._cut_finer(x)
                self._require_fit(x, folded)
        except BudgetError as unmet:
            hint = f"At least {with_exact(unmet.needed_bytes)} must be free."
            raise DeviceMemoryError.after(before, error, hint) from error
        warn_of_less(before, self.budget_bytes, len(self.bounds) - 1, error)

    def _require_fit(self, x: Features, folded: bool) -> None:
        """Plan a call, and the constants that are computed before it, or raise BudgetError."""
        self._planned_constants(self.plan(x, folded=folded).program)

    def _cut_finer(self, x: Features) -> None:
        """Cut into as many intervals as the budget asks for."""
        with MODELS.changing():
            program = self._captured(x)
        # Parameters may be frozen now and trained later.
        gradients = Gradients(program, wanted_x=needs_gradient(x))
        self._part = fitted_intervals(
            program,
            self.hops,
            self.budget_bytes,
            gradients=gradients,
            trains=self.trains,
            beside=self._beside,
            cut_part=dealing(self._exchange.cut, self._backend.names),
            is_square=self.selection.is_forced,
        )
        self.bounds = self._part.bounds
        if self._part.undivided:
            self.selection = NEVER
        # The traversal belongs to the old intervals.
        self.traversal = None
        self._cut_anew()

    def _host_of(self, plan: Planned) -> Host:
        """Where a call keeps its blocks that are not in use."""
        if self._recorded_by != threading.get_ident():
            return self._new_host()
        return self._lasting.setdefault(id(plan), (plan, self._backend.lasting_host()))[1]

    def _staying(self, plan: Planned, x: Features) -> Stayed:
        """Where a call finds and leaves blocks that stay in memory. Those of other plans or features leave: they are not in its budget."""
        key = plan.plan.staying, feature_version(x), self._read_by(plan.program, plan.schedule.part)
        known, of, _ = self._stayed
        if known != key or of() is not x:
            self._stayed = key, _known_by(x), {}
        return self._stayed[2]

    def _executor(
        self, plan: Planned, chunks: Mapping[int, Chunks], epoch: Epoch, host: Host, constants: Host, stayed: Stayed
    ) -> Executor:
        return Executor(
            plan,
            chunks=chunks,
            host=host,
            constants=constants,
            dialect=self.dialect,
            epoch=epoch,
            backend=self._backend,
            beside=self._beside,
            timeline=self.timeline,
            exchange=self._exchange,
            stayed=stayed,
        )

    def _constants(self, program: ModelProgram, x: Features) -> Host:
        """The blocks that are the same in every epoch; computed for new features."""
        known = self._kept.get(program.constants)
        if known is not None and known.x() is x and known.version == feature_version(x):
            return known.host
        host = self._new_host()
        # Also a worker without a halo takes part in the exchange of features.
        sends_x = self._part.exchanges and program.reads_constant_x
        gathers = sends_x or any(gather.constant for gather in program.gathers)
        if gathers or program.factors:
            self._kept.pop(program.constants, None)
            # They are not in the budget of what comes now, and of other features.
            self._stayed = None, nothing, {}
            try:
                self._put_factors(program, host)
                if gathers:
                    self._gather_constants(program, x, host)
            except BaseException:
                # The traceback of the error keeps the host.
                host.close()
                raise
            self._kept[program.constants] = _Kept(x=_known_by(x), version=feature_version(x), host=host)
        return host

    def _gather_constants(self, program: ModelProgram, x: Features, host: Host) -> None:
        plan = self._planned_constants(program)
        with MODELS.reading():
            named = tensors_of(self.model)
        parameters = [named[name].detach() for _, name in program.parameters]
        epoch = Epoch(x=self._store_of(x), parameters=parameters, trains=False)
        with for_training_as_well():
            chunks = self._chunks.of(program, self._part, of_constants=True)
            self._executor(plan, chunks, epoch, self._new_host(), host, {}).keep_constants()

    def _put_factors(self, program: ModelProgram, host: Host) -> None:
        """Put the vertex rows whose product edge data are where plans of divided and of undivided rows find them."""
        own = self._part.own
        for name, (hop, _) in program.factors.items():
            for interval in (*own, ALL) if self._part.undivided else own:
                covered = own if interval == ALL else range(interval, interval + 1)
                first = self.bounds[covered.start]
                form = torch.empty(
                    self.bounds[covered.stop] - first, dtype=program.forms[name].dtype, device="meta"
                )
                (rows,) = host.room(Block("value", name, interval), Layout({"": form})).values()
                for start, stop in pairwise(self.bounds[covered.start : covered.stop + 1]):
                    rows[start - first : stop - first] = self.hops[hop].degree_factors(slice(start, stop))

    def _planned_constants(self, program: ModelProgram) -> Planned:
        return plan_constants(
            program,
            self._chunks.sizes(program, self._part, of_constants=True),
            self._part,
            self.budget_bytes,
            self.selection,
            memory_policy=self.memory_policy,
            beside=self._beside,
        )

    def chunks_of(self, program: ModelProgram) -> dict[int, Chunks]:
        """The chunks that the gathers of the captured model go over, as of :meth:`CutHops.of`."""
        if any(gather.constant for gather in program.gathers):
            self._chunks.of(program, self._part, of_constants=True)
        return self._chunks.of(program, self._part)

    def _store_of(self, x: Features) -> FeatureStore:
        """What reads the features: without a budget, a tensor where it lies."""
        return feature_store(x) if self.budget_bytes >= UNLIMITED else positioned(x)

    def why_queued(self, x: Features) -> str | None:
        """Why no :meth:`loss` can be recorded, as far as is known before; None where it is tried: this thread's calls then reuse a plan's memory."""
        cause, store = why_queued(self.plan(x, folded=True), x, on_disk=self._folder is not None), self._store_of(x)
        if cause is None and isinstance(store, TensorRows) and (refused := self._backend.pin(store.tensor)):
            cause = f"the host reads the features for the device: {refused}"
        self._recorded_by = None if cause else threading.get_ident()
        return cause

    def close(self) -> None:
        """Forget all blocks, in memory and on disk; the next call makes them again. No call may be under way."""
        for kept in self._kept.values():
            kept.host.close()
        self._chunks.close()
        self._cut_anew()

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a streamed model cannot be copied: it has threads, and files of its own (in StreamedModel)",
            hint="Copy or save its .model, and stream that again.",
        )

    def _new_host(self) -> Host:
        return self._backend.new_host(self._folder)

    def _captured(self, x: Features) -> ModelProgram:
        if has_hooks(self.model.modules()):
            raise LayerError(
                f"a model that is streamed cannot have hooks: a module has one (in {type(self.model).__name__})",
                hint="Remove it: the model's own forward does not run.",
            )
        like = like_on(x, self._backend.device)
        # Where edges are read in place, factors would take time and save nothing.
        factored = self._beside.copies_beside
        return captured(self.model, self.hops, like, x_is_constant=are_constant(x), factored=factored)
