"""Automatic budget: a run that memory would not hold is streamed without being asked to be.

Whether it is needed is decided in two steps. An upper estimate from sizes alone lets most runs go on as they are. For the
others the memory model says what an epoch takes in memory. The budget is what is free, less what the run holds
besides and a margin, so it is another one from day to day; a run keeps its own, which a resumed one goes on with.

A streamed run holds no logits of all vertices: the loss is computed interval by interval, an evaluation writes them to a
file, and metrics read that slab by slab. What these take is counted for the largest split, whichever way the run goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sagann.byte_size import format_bytes
from sagann.errors import InputError, LayerError
from sagann.free_space import memory
from sagann.graph import Graph
from sagann.graph.rows import is_sparse
from sagann.saga.hops import count_hops
from sagann.train.metrics import measuring_bytes
from sagann.train.predictor import most_measured, parameter_dtype

MARGIN_BYTES = 256 << 20
"Left for Python, PyTorch and what kernels are compiled by,"
MARGIN_SHARE = 0.05
"and of what is free, for whatever else runs."
# Tensors of the width of each dimension of a weight, per vertex, edge and hop: far more than there are.
_MOST_TENSORS = 8
# A weight, its gradient, two moments of Adam, and the best one so far; the first is there already.
_WEIGHT_COPIES = 4
PREPARED_SHARE = 0.25
"Of what is free: what preparing a graph makes lies in files from there on."
# Of an edge with its loops: a source, a weight, and an id of the edge that it was.
_EDGE_BYTES = 16
# Of a vertex: offsets, labels, masks and ids, and for a moment degrees and counts.
_VERTEX_BYTES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a run may take."""

    free_bytes: int
    "Under the machine's memory and the process's limits, before anything is trained."
    epoch_bytes: int
    "Bytes of the free memory for an epoch's tensors of vertices and edges, with the logits of an evaluation in memory too."
    streamed_bytes: int
    "The same where the run is streamed: the loss is folded, and the logits of an evaluation lie in files."

    @classmethod
    def of(cls, model: nn.Module, graph: Graph, in_files_bytes: int = 0) -> Room | None:
        """What there is now for a model on a graph prepared for it; None where the system does not tell.

        Args:
            model: what is trained.
            graph: prepared for it.
            in_files_bytes: bytes of the graph that lie in files, and have to be in memory for an epoch that is not streamed.
        """
        free_bytes = memory().usable_bytes
        if free_bytes is None:
            return None
        margin_bytes = MARGIN_BYTES + int(MARGIN_SHARE * free_bytes)
        left_bytes = free_bytes - margin_bytes - _held_bytes(model, graph)
        return cls(
            free_bytes=free_bytes,
            epoch_bytes=max(1, left_bytes - _logit_bytes(model, graph) - in_files_bytes),
            streamed_bytes=max(1, left_bytes),
        )


def bytes_in_files(model: nn.Module, graph: Graph) -> int:
    """Bytes that preparing a graph makes, where they are so many that they had better lie in files; else 0.

    The decision whether to stream comes later, for it needs the prepared graph.

    Args:
        model: on the CPU.
        graph: as it was opened, not yet prepared.
    """
    usable_bytes = memory().usable_bytes
    made_bytes = _prepared_bytes(model, graph)
    return made_bytes if usable_bytes is not None and made_bytes > PREPARED_SHARE * usable_bytes else 0


def automatic_budget(
    model: nn.Module,
    graph: Graph,
    say: Callable[[str], None],
    *,
    known: int | None = None,
    in_files_bytes: int = 0,
) -> int | None:
    """The budget that a model has to be streamed within, in bytes; None where memory holds all of it.

    Args:
        model: on the CPU.
        graph: prepared for it.
        say: is told if the run is streamed, or had better be and cannot.
        known: the budget that the run began with, which is kept if there is room for it.
        in_files_bytes: what :func:`bytes_in_files` said before the graph was prepared.
    """
    room = Room.of(model, graph, in_files_bytes)
    if room is None:
        return known
    if known is not None and known <= room.streamed_bytes:
        say(f"The run goes on as it began: streamed within {format_bytes(known)}.")
        return known
    if known is None and (_most_bytes(model, graph) <= room.epoch_bytes or not _is_streamed_by_engine()):
        return None
    # Imported here: most runs do not get this far, and it loads Numba.
    from sagann.runtime.streaming.stream import dense_bytes

    free = format_bytes(room.free_bytes)
    try:
        needed_bytes = dense_bytes(model, graph)
    except (InputError, LayerError) as error:
        if _least_bytes(model, graph) > room.epoch_bytes:
            say(
                f"The run may need more memory than the {free} that are free, and cannot be streamed: "
                f"{error.what}: {error.value}. {error.fix}"
            )
        return None
    if known is None and needed_bytes <= room.epoch_bytes:
        return None
    say(
        f"An epoch would take {format_bytes(needed_bytes)} of memory, the logits of an evaluation "
        f"{format_bytes(_logit_bytes(model, graph))}, and {free} are free: the model is streamed within "
        f"{format_bytes(room.streamed_bytes)}. --memory (TrainConfig.memory) sets another budget."
    )
    if known is not None:
        say(f"The run began with {format_bytes(known)}: its last bits may differ.")
    return room.streamed_bytes


def _is_streamed_by_engine() -> bool:
    """Whether layers run by the engine whose programs are streamed, and as fast as they can."""
    from sagann.runtime.in_memory.engine import CompiledEngine
    from sagann.saga.engine import current_engine

    engine = current_engine()
    return isinstance(engine, CompiledEngine) and not engine.lean


def _held_bytes(model: nn.Module, graph: Graph) -> int:
    """What training holds besides an epoch's tensors of vertices and edges, and besides logits."""
    weights = sum(parameter.nbytes for parameter in _parameters(model))
    measuring = measuring_bytes(most_measured(graph), graph.num_classes, multi_label=graph.multi_label)
    return _WEIGHT_COPIES * weights + _VERTEX_BYTES * graph.num_vertices + measuring


def _logit_bytes(model: nn.Module, graph: Graph) -> int:
    """Of the result for all vertices."""
    return graph.num_vertices * graph.num_classes * _number_bytes(model)


def _prepared_bytes(model: nn.Module, graph: Graph) -> int:
    """What preparing a graph makes: features of the model's type, dense where the model takes no sparse ones; edges with loops."""
    made_bytes = graph.num_edges * _EDGE_BYTES
    features = graph.features
    if features is None:
        return made_bytes
    dtype = parameter_dtype(model)
    whole_bytes = graph.num_vertices * graph.num_features * dtype.itemsize
    if is_sparse(features):
        if not getattr(model, "takes_sparse_features", False):
            return made_bytes + whole_bytes
        whole_bytes = features._nnz() * dtype.itemsize
    return made_bytes + (whole_bytes if features.dtype != dtype else 0)


def _most_bytes(model: nn.Module, graph: Graph) -> int:
    """More than an epoch takes, however its layers are run."""
    widths = graph.num_features + graph.num_classes
    widths += sum(sum(parameter.shape) for parameter in _parameters(model))
    rows = graph.num_vertices + graph.num_edges
    return _MOST_TENSORS * rows * max(1, count_hops(model)) * widths * _number_bytes(model)


def _least_bytes(model: nn.Module, graph: Graph) -> int:
    """Less than an epoch takes: results of linear maps, and their gradients."""
    widths = sum(module.out_features for module in model.modules() if isinstance(module, nn.Linear))
    return 2 * graph.num_vertices * widths * _number_bytes(model)


def _number_bytes(model: nn.Module) -> int:
    return max((parameter.element_size() for parameter in _parameters(model)), default=4)


def _parameters(model: nn.Module) -> list[Tensor]:
    """Those that have a shape already."""
    return [parameter for parameter in model.parameters() if not is_lazy(parameter)]
