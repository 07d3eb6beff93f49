"""A run that cannot fit memory is refused before it starts: the system would kill it without a word."""

from __future__ import annotations

from sagann.byte_size import format_bytes
from sagann.cli.run_settings import RunSettings
from sagann.cli.settings import ENGINES
from sagann.errors import InputError
from sagann.free_space import memory
from sagann.graph import Graph
from sagann.graph.rows import is_sparse
from sagann.nn import MODELS
from sagann.train.metrics import most_measured
from sagann.train.resources import resolve_device

_FLOAT_BYTES = 4
_READ_DENSE_ROWS = frozenset(["gated-gcn"])
"Models of the zoo whose first layer reads its input otherwise than by linear maps."
# What is predicted and what is true, both as int64: the least; sagann.train.metrics counts the most.
_LEAST_DECISION_BYTES = 16


def check_memory(settings: RunSettings, graph: Graph) -> None:
    """Refuse a model that needs more memory than there is, whatever the details.

    Raises:
        InputError: the least it can need is more than this process may take.
    """
    if resolve_device(settings.train.device).type != "cpu":
        # CUDA refuses by itself, without harm.
        return
    is_known = settings.model.model in MODELS
    fix = "Check num_classes and the largest label; number the classes from 0 without gaps."
    if settings.train.memory is None and settings.engine == ENGINES[0]:
        fix += " If they are right, --memory streams the run, and its output lies in files."
    refuse_beyond_memory(
        output_bytes(settings, graph) + (output_weight_bytes(settings, graph) if is_known else 0),
        where=f"the output for {graph.num_classes} classes on {graph.num_vertices} vertices",
        fix=fix,
    )
    if not is_known:
        # Of the user's own model nothing else is known.
        return
    refuse_beyond_memory(
        least_bytes(settings, graph),
        where=f"{settings.model.model}, {settings.model.layers} layers, hidden {settings.model.hidden}, "
        f"on {graph.num_vertices} vertices and {graph.num_edges} edges",
        fix="Use the compiled engine and dense features, which are streamed, a smaller --hidden or fewer --layers, or a machine with more memory.",
    )


def refuse_beyond_memory(needed_bytes: int, *, where: str, fix: str) -> None:
    """Refuse work that needs more memory than this process may still take.

    Raises:
        InputError: it does.
    """
    usable_bytes = memory().usable_bytes
    if usable_bytes is not None and needed_bytes > usable_bytes:
        raise InputError(
            "the work does not fit memory",
            value=f"at least {format_bytes(needed_bytes)} are needed, {format_bytes(usable_bytes)} are free",
            where=where,
            fix=fix,
        )


def output_bytes(settings: RunSettings, graph: Graph) -> int:
    """Bytes of the output that a run on the CPU holds in memory, at the least.

    These are the logits, which any model returns. Streamed, the loss is folded and logits lie in files, but decisions of
    several labels a vertex are counted in memory, a split at a time.
    """
    if settings.train.memory is None:
        return graph.num_vertices * graph.num_classes * _FLOAT_BYTES
    return most_measured(graph) * graph.num_classes * _LEAST_DECISION_BYTES if graph.multi_label else 0


def output_weight_bytes(settings: RunSettings, graph: Graph) -> int:
    """Bytes of a zoo model's last weights with their gradients, at the least: its input has one of two widths."""
    hidden = settings.model.hidden
    return 2 * graph.num_classes * min(hidden, graph.num_features or hidden) * _FLOAT_BYTES


def least_bytes(settings: RunSettings, graph: Graph) -> int:
    """Bytes that training takes at the very least: weights with gradients, activations, and where layers run as they
    are written, one tensor over edges."""
    hidden, boundaries = settings.model.hidden, settings.model.layers - 1
    weights = graph.num_features * hidden + max(0, boundaries - 1) * hidden**2 if boundaries else 0
    if settings.model.model == "ggnn":
        # Steps share their weights, and each works at full width.
        weights, boundaries = 3 * hidden**2, settings.model.layers
    # What can be streamed is, where memory would not hold it.
    streams = settings.engine == ENGINES[0] and graph.features is not None
    activations = 0 if streams else boundaries * graph.num_vertices * hidden
    edges = graph.num_edges * hidden if boundaries and settings.engine == "naive" else 0
    dense = 0
    reads_dense = settings.engine == "naive" or settings.model.model in _READ_DENSE_ROWS
    if is_sparse(graph.features) and reads_dense and not _has_encoder(settings):
        dense = graph.num_vertices * graph.num_features
    return (2 * weights + activations + edges + dense) * _FLOAT_BYTES


def _has_encoder(settings: RunSettings) -> bool:
    return settings.model.encoder == "linear" or (
        settings.model.encoder == "auto" and settings.model.model == "ggnn"
    )
