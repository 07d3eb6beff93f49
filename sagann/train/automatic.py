"""Automatic budget: a run that is too large for the free memory is streamed, although no budget is stated.

An upper estimate from sizes alone lets most runs go on as they are. For the others, the plan of an epoch in memory says what the epoch
takes. The budget is the free memory, less a margin and what the run holds besides an epoch's tensors; a resumed run keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sagann.byte_size import format_bytes
from sagann.config import TrainConfig
from sagann.errors import InputError, LayerError
from sagann.free_space import memory
from sagann.graph import Graph
from sagann.graph.rows import is_sparse
from sagann.saga.layer import count_hops
from sagann.train.metrics import measuring_bytes, most_measured
from sagann.train.predictor import Predictor
from sagann.train.runner import parameter_dtype, takes_sparse_features

MARGIN_BYTES = 256 << 20
"Part of the margin, in bytes: for Python, PyTorch and the compiler of kernels."
MARGIN_SHARE = 0.05
"Part of the margin, as a share of the free memory: for other programs."
PREPARED_SHARE = 0.25
"Share of the free memory from which on the arrays of a prepared graph lie in files."
# Tensors of the width of each dimension of a weight, per vertex, edge and hop: far more than any layer makes.
_MOST_TENSORS = 8
# Copies of the weights that training adds: the gradient, two moments of Adam, and the best weights so far.
_WEIGHT_COPIES = 4
# Per edge of a prepared graph, loops included: a source, a weight, and the id of the original edge.
_EDGE_BYTES = 16
# Per vertex: offsets, labels, masks, ids, and temporary degrees and counts.
_VERTEX_BYTES = 100


def may_choose_budget(predictor: Predictor, config: TrainConfig) -> bool:
    """Whether a run is streamed where memory is too small for it: no budget is stated, and one processor walks a whole graph."""
    is_alone = config.memory is None and predictor.device.type == "cpu" and predictor.team.size == 1
    return is_alone and (predictor.contract.unit == "vertex" or config.sample is not None)


def bytes_in_files(predictor: Predictor, graph: Graph, config: TrainConfig) -> int:
    """Bytes of the arrays that preparing ``graph`` makes, where they are so many that they should lie in files, whether it is streamed or not; else 0.

    They are the edges with loops, and features that preparing converts to the model's dtype or makes dense.
    """
    usable_bytes = memory().usable_bytes
    if usable_bytes is None or not may_choose_budget(predictor, config):
        return 0
    model, features, made_bytes = predictor.model, graph.features, graph.num_edges * _EDGE_BYTES
    if features is not None:
        dtype, count, is_made_dense = parameter_dtype(model), graph.num_vertices * graph.num_features, False
        if is_sparse(features):
            is_made_dense = not takes_sparse_features(model)
            count = count if is_made_dense else features._nnz()
        if features.dtype != dtype or is_made_dense:
            made_bytes += count * dtype.itemsize
    return made_bytes if made_bytes > PREPARED_SHARE * usable_bytes else 0


def automatic_budget(
    predictor: Predictor,
    graph: Graph,
    config: TrainConfig,
    say: Callable[[str], None],
    *,
    known: int | None,
    in_files_bytes: int,
) -> int | None:
    """The budget that a model must be streamed within, in bytes; None where memory is large enough for the run, or another budget is stated.

    ``known`` is the budget that the run began with, which is kept if there is room, ``in_files_bytes`` what :func:`bytes_in_files` gave
    for the graph before it was prepared. Of a run on mini-batches, only evaluations walk the whole graph.
    """
    if not may_choose_budget(predictor, config):
        return None
    free_bytes, model, hot_bytes = memory().usable_bytes, predictor.model, 0
    if free_bytes is None:
        return known
    if config.hot is not None:
        from sagann.train.tiers import stated_hot_bytes

        hot_bytes = stated_hot_bytes(graph.features, config)
    parameters = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    item_bytes = max((parameter.element_size() for parameter in parameters), default=4)
    free_bytes = max(0, free_bytes - hot_bytes)
    margin_bytes = MARGIN_BYTES + int(MARGIN_SHARE * free_bytes)
    room_bytes = max(1, free_bytes - margin_bytes - _held_bytes(parameters, graph))
    if known is not None and known <= room_bytes:
        say(f"The run goes on as it began: streamed within {format_bytes(known)}.")
        return known
    # In memory, logits of all vertices and arrays that lie in files take their part.
    logit_bytes = graph.num_vertices * graph.num_outputs * item_bytes
    epoch_bytes = room_bytes - logit_bytes - in_files_bytes
    widths = graph.num_features + graph.num_outputs + sum(sum(parameter.shape) for parameter in parameters)
    rows = max(1, count_hops(model)) * (graph.num_vertices + graph.num_edges)
    if known is None and (_MOST_TENSORS * rows * widths * item_bytes <= epoch_bytes or not is_streamed_by_engine()):
        return None
    from sagann.runtime.streaming.stream import dense_bytes

    trains = config.sample is None
    free = f"{format_bytes(free_bytes)} are free" + (" beside the hot tier" if hot_bytes else "")
    try:
        needed_bytes = dense_bytes(model, graph, trains=trains)
    except (InputError, LayerError) as error:
        # Results of linear maps, and their gradients, take less than an epoch.
        widths = sum(module.out_features for module in model.modules() if isinstance(module, nn.Linear))
        if 2 * graph.num_vertices * widths * item_bytes > epoch_bytes:
            say(f"The run may need more memory than there is: {free}. It cannot be streamed: {error}")
        return None
    if known is None and needed_bytes <= epoch_bytes:
        return None
    say(
        f"An {'epoch' if trains else 'evaluation'} would take {format_bytes(needed_bytes)} of memory, the logits of an evaluation "
        f"{format_bytes(logit_bytes)}, and {free}: the model is streamed within "
        f"{format_bytes(room_bytes)}. --memory (TrainConfig.memory) sets another budget."
    )
    if known is not None:
        say(f"The run began with {format_bytes(known)}: its last bits may differ.")
    return room_bytes


def is_streamed_by_engine() -> bool:
    """Whether the engine is the one whose programs can be streamed, at its full speed."""
    from sagann.runtime.in_memory.engine import CompiledEngine
    from sagann.saga.engine import current_engine

    engine = current_engine()
    return isinstance(engine, CompiledEngine) and not engine.lean


def _held_bytes(parameters: Iterable[Tensor], graph: Graph) -> int:
    """Bytes that training holds besides logits and an epoch's tensors of vertices and edges."""
    weights = sum(parameter.nbytes for parameter in parameters)
    measuring = measuring_bytes(most_measured(graph.vertices), graph.num_outputs, multi_label=graph.multi_label)
    return _WEIGHT_COPIES * weights + _VERTEX_BYTES * graph.num_vertices + measuring
