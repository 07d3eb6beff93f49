"""What can be trained: answers to learn, the features and hops that mini-batches and workers need, and a model that walks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sagann import interop
from sagann.config import TrainConfig
from sagann.errors import InputError, LayerError, MissingDependencyError
from sagann.free_space import require_memory
from sagann.graph import Graph, for_task
from sagann.graph.answers import SPLITTERS
from sagann.graph.graph import answers_of, left_out, task_of
from sagann.graph.validate import validate_labels
from sagann.nn import MODELS, ModelConfig, build_model
from sagann.nn.model_call import is_written_for_pyg
from sagann.options import refuse
from sagann.saga.layer import count_hops
from sagann.saga.row_runs import tolerance_of
from sagann.storage.verify import check_graph
from sagann.train.metrics import DECISION_BYTES, most_measured, present_splits
from sagann.train.resources import seeded

if TYPE_CHECKING:
    from sagann.runtime.team import Team
    from sagann.train.predictor import Predictor
    from sagann.train.runner import PreparedGraph

_TRIED_SEEDS = 8
"Seeds on which it is tried whether the row of one depends on the others."


def learned_graph(
    graph: Graph, config: TrainConfig, team: Team, *, validate: bool, tell: Callable[[str | None], None]
) -> Graph:
    """The graph with the answers of a run's task alone, if it can be trained on."""
    learned = for_task(graph, config.task, where="TrainConfig.task")
    tell(left_out(graph, task_of(learned)))
    # The first of several workers checks every value, and the others wait for the result.
    with team.together("checking the graph"):
        if validate:
            check_graph(learned)
        else:
            validate_labels(learned)
    _check_answers(learned)
    tell(_learned_as_well(learned))
    unit = learned.answers.unit
    config.require_effect(of_graphs=unit == "graph", of_links=unit == "link")
    if config.tensorboard and find_spec("tensorboard") is None:
        raise MissingDependencyError("tensorboard", extra="tensorboard", feature="TrainConfig.tensorboard")
    return learned


def require_divisible(config: TrainConfig, *, balance: str, of_graphs: bool = False) -> None:
    """Refuse what several workers, whose parts are balanced by a policy, cannot train yet."""
    if balance == "cost" and config.memory is not None:
        raise InputError(
            f"vertices do not move between workers that stream: balance is 'cost', memory is {config.memory!r} "
            "(in TrainConfig.memory)",
            hint="Balance by edges or vertices (--balance edges), or leave memory out.",
        )
    if balance == "cost" and (config.sample is not None or of_graphs):
        found = "whole graphs are learned" if config.sample is None else f"sample is {list(config.sample)}"
        raise InputError(
            f"mini-batches are divided equally among workers: balance is 'cost', {found} "
            f"(in TrainConfig.{'task' if config.sample is None else 'sample'})",
            hint="Balance by edges or vertices (--balance edges).",
        )
    why = "several workers sample, and a device reads no edges of another machine"
    refuse(config, ["sample_on"], why, "train with one worker")
    why = "several workers train, which have a device each and write no profile"
    refuse(config, ["devices", "profile"], why, "train with one worker")


def require_features(graph: Graph, what: str, *, hint: str) -> None:
    """Refuse a graph without features. ``what`` is what needs them, in the plural, for the error."""
    if graph.num_features == 0:
        raise InputError(
            f"{what} need features, but the vertices have none; learned rows need the whole graph (in graph '{graph.name}')",
            hint=hint,
        )


def require_one_graph(model: nn.Module, graph: Graph) -> None:
    """Refuse several graphs for a model that takes ``batch``, where it does not run on all of them at once."""
    if graph.num_graphs > 1 and getattr(model, "reads_batch", False):
        raise InputError(
            f"a model of PyTorch Geometric that takes batch runs on all graphs at once: {graph.num_graphs} "
            f"graphs, by mini-batches, workers or intervals (in graph '{graph.name}')",
            hint="Train it in memory: without --sample, --workers and --memory.",
        )


def _check_sampled(model: nn.Module, graph: Graph, fanouts: Sequence[int]) -> None:
    """Refuse a graph without features, and a model that does not walk such blocks, or as many."""
    from sagann.interop.pyg_model import PygModel

    require_features(
        graph, "mini-batches", hint="Train on the whole graph (--sample none), or give the graph features."
    )
    require_one_graph(model, graph)
    for module in model.modules():
        if isinstance(module, PygModel):
            module.require_sampled()
    num_hops = count_hops(model)
    if len(fanouts) != num_hops:
        hint = f"Set {num_hops} fanouts, as --sample {','.join(['10'] * num_hops)}."
        raise InputError(
            f"wrong number of fanouts: {len(fanouts)}, expected one for each of the model's {num_hops} hops (in TrainConfig.sample)",
            hint=hint if num_hops else "Train it on the whole graph; it reads no edge.",
        )


def require_seeds_apart(predictor: Predictor, prepared: PreparedGraph, fanouts: Sequence[int]) -> None:
    """Refuse a model that gives a seed of a mini-batch another row alone than beside others."""
    from sagann.interop.pyg_example import undisturbed
    from sagann.runtime.loading import MiniBatches

    def row_of_last(seeds: Tensor) -> Tensor:
        batches = MiniBatches(graph, fanouts=fanouts, seeds=seeds, shuffle=False, ahead=0, device=predictor.device)
        if prepared.edges is not None:
            batches.draw_from(prepared.edges)
        return predictor.forward_batch(next(iter(batches)))[-1]

    graph = prepared.sampled
    seeds = torch.arange(min(_TRIED_SEEDS, graph.num_vertices))
    # Other parameters than those that begin as zeros, which would hide what they are multiplied with.
    with undisturbed(predictor.model):
        together, again, alone = row_of_last(seeds), row_of_last(seeds), row_of_last(seeds[-1:])
    # Sums in another order differ by less.
    tolerance = max(1e-3, tolerance_of(together.dtype)) * float(together.nan_to_num(0, 0, 0).abs().max())
    is_close = partial(torch.allclose, together, rtol=0.0, atol=tolerance, equal_nan=True)
    # A model that draws random numbers in evaluation is not judged.
    if not is_close(alone) and is_close(again):
        raise LayerError(
            "a model that is trained on mini-batches must treat vertices independently between its layers: "
            f"it gives a seed another row alone than beside {len(seeds) - 1} others (in model {predictor.head.name})",
            hint="Leave out what depends on other vertices than neighbours, or on numbers and order of vertices, such as GraphNorm and "
            "torch.arange(len(x)); or train on the whole graph (without --sample and --devices).",
        )


def _check_answers(graph: Graph) -> None:
    """Refuse a graph without answers to learn, without vertices, graphs or edges to train on, or without links to choose a model by."""
    where, answers, topology = f"graph '{graph.name}'", graph.answers, graph.topology
    if answers.targets is None and (answers.labels is None or answers.num_classes < 1):
        raise InputError(
            f"the graph has nothing to learn: {answers_of(graph)} (in {where})",
            hint="Give the graph labels and num_classes, or targets.",
        )
    if graph.links is not None and answers.unit == "link":
        if not bool((topology.indices != topology.edge_dst()).any()):
            raise InputError(
                f"no link to learn: {graph.num_edges} edges, each from a vertex to itself (in {where})",
                hint="Hold fewer edges out, or take a graph with more of them.",
            )
        if not present_splits(graph.links.splits).keys() & {"train", "val"}:
            raise InputError(
                f"no link to choose a model by: measured links of {', '.join(graph.links.splits) or 'no split'} "
                f"(in {where})",
                hint="Give the measured links a split 'val', as sagann.sampling.hold_out_links does.",
            )
        return
    if answers.unit == "graph":
        hint = "Train on answers of vertices, or give the graph features."
        require_features(graph, "batches of graphs", hint=hint)
    if "train" not in answers.splits:
        raise InputError(
            f"no {answers.unit} to train on: the split 'train' of {answers.units} is missing (in {where})",
            hint=f"Draw one with sagann.graph.{SPLITTERS[answers.unit]}, or pass a bool mask 'train' of {answers.units} with a known answer among "
            f"{answers.prefix}splits.",
        )


def _learned_as_well(graph: Graph) -> str:
    """A sentence about links to validate and test on that are edges of the graph too, or reverses of edges; empty where there is none."""
    links, found = graph.links, []
    if links is None:
        return ""
    from sagann.sampling.links import are_edges

    topology = graph.topology.to("cpu")
    for name, mask in present_splits(links.splits).items():
        types = None if links.types is None else links.types[mask]
        src, dst = links.src[mask], links.dst[mask]
        known = are_edges(topology, src, dst, types)
        if links.undirected:
            known |= are_edges(topology, dst, src, types)
        if name != "train" and bool(known.any()):
            found.append(f"{int(known.sum())} of {len(known)} links of the split '{name}'")
    if not found:
        return ""
    return (
        f"{' and '.join(found)} are edges of the graph, or reverses of edges: each of them is learned, and messages travel along it, so their metrics are too good. "
        "Hold links out with sagann.sampling.hold_out_links, unless the same edge comes again, as over time."
    )


def model_to_train(
    model: nn.Module | ModelConfig,
    graph: Graph,
    config: TrainConfig,
    *,
    device: torch.device,
    team: Team,
    tell: Callable[[str | None], None],
) -> nn.Module:
    """The model of a run: built from its configuration under the seed, or the user's own, which may be one of PyTorch Geometric."""
    if isinstance(model, ModelConfig):
        tell(model.without_effect(of_graphs=graph.answers.unit == "graph"))
        if device.type == "cpu":
            # CUDA devices refuse by themselves.
            _require_room(model, graph, config, is_alone=team.size == 1)
        with seeded(config.seed, device):
            model = build_model(model, graph)
    if is_written_for_pyg(model):
        model = interop.from_pyg_model(model, graph)
        tell(model.left_out(graph))
    if config.sample is not None:
        _check_sampled(model, graph, config.sample)
    return model


def _require_room(model: ModelConfig, graph: Graph, config: TrainConfig, *, is_alone: bool) -> None:
    """Refuse a run whose weights and outputs alone do not fit memory, as where a wrong label makes billions of classes.

    Weights are counted with their gradients, or with the outputs of all vertices, if these are larger. The weights of a user's own model are not counted.
    """
    answers, weights, outputs, streams = graph.answers, 0, 0, ""
    if config.memory is None:
        streams = "--memory, which streams the run, "
        if is_alone and answers.unit != "graph":
            width = model.hidden if answers.unit == "link" else answers.num_outputs
            outputs = graph.num_vertices * width * torch.float32.itemsize
    elif graph.multi_label:
        # Logits lie in files, but decisions of several labels are counted a split at a time.
        outputs = most_measured(graph.vertices) * graph.num_classes * DECISION_BYTES
    if model.model in MODELS:
        # Nothing is allocated on the device 'meta'.
        with seeded(config.seed, torch.device("cpu")), torch.device("meta"):
            weights = sum(parameter.nbytes for parameter in build_model(model, graph).parameters())
    require_memory(
        weights + max(weights, outputs),
        where=f"{model.model}, hidden {model.hidden}, for {answers.num_outputs} outputs on {graph.num_vertices} vertices",
        hint=f"If there are too many classes, number them from 0 without gaps. Else use {streams}a smaller --hidden, or fewer --layers.",
    )
