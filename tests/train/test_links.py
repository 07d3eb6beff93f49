"""Links are learned: equal to a plain loop, whole or on mini-batches, and resumed bitwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.errors import CheckpointError, InputError, LayerError
from sagann.free_space import Room
from sagann.graph import LINK_TASK, Graph, Topology, sbm_graph
from sagann.nn import GNN, SAGE, LinkModel, ModelConfig, build_model
from sagann.runtime.loading import MiniBatch
from sagann.runtime.tiered import TieredFeatures
from sagann.runtime.workers import Workers
from sagann.saga.layer import count_hops
from sagann.sampling import LinkSampler, hold_out_links
from sagann.tiering import hottest, score_vertices
from sagann.train import TrainConfig, Trainer, link_metrics, load_run
from sagann.train.batch_epochs import LinkEpochs, SampledEpochs
from sagann.train.predictor import Predictor
from sagann.train.streamed import Streaming
from tests.graphs import labelled_graph
from tests.runtime.workers.threads import in_threads
from tests.tolerances import assert_close
from tests.train import runs
from tests.train.runs import dense_means, numbers_of

pytestmark = pytest.mark.usefixtures("naive")

LINKS: dict[str, Any] = {"task": LINK_TASK, "epochs": 3}


def communities(num_vertices: int = 300) -> Graph:
    graph = sbm_graph(
        num_vertices, num_classes=6, average_degree=10, homophily=0.95, num_features=16, feature_noise=0.5, seed=0
    )
    return hold_out_links(graph, seed=0, negatives=9)


def typed() -> Graph:
    return hold_out_links(labelled_graph(types=3), train=0.7, val=0.1, negatives=4, seed=0)


def model_of(graph: Graph, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_model(
        ModelConfig(**{"model": "sage", "hidden": 8, "dropout": 0.0, **options}), alone(graph)
    ).double()


def alone(graph: Graph) -> Graph:
    return replace(graph, labels=None, num_classes=0)


def trainer_of(model: Any, graph: Graph, **options: Any) -> Trainer:
    return runs.trainer_of(model, graph, **{**LINKS, **options})


def predictor_of(model: nn.Module, graph: Graph, **options: Any) -> Predictor:
    return runs.predictor_of(model, alone(graph), **options)


def plain_rows(model: LinkModel, graph: Graph) -> Tensor:
    """The rows of two SAGE layers, with a dense adjacency."""
    means, rows = dense_means(graph), graph.features.double()  # type: ignore[union-attr]
    first, second = model.gnn.layers
    hidden = torch.relu(first.apply_vertex(rows, means @ rows))
    return second.apply_vertex(hidden, means @ hidden)


@pytest.mark.usefixtures("kernels")
def test_a_run_is_that_of_a_plain_loop() -> None:
    graph = communities()
    model, twin = model_of(graph), model_of(graph)
    trainer = trainer_of(model, graph, optimizer="SGD", lr=0.1)
    found = trainer.fit()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=5e-4)
    topology = graph.topology
    src, dst = topology.indices.long(), topology.edge_dst().long()
    sampler = LinkSampler(topology, seed=0)
    for record in found.history:
        rows = plain_rows(twin, graph)  # type: ignore[arg-type]
        links = sampler.sample(src, dst, epoch=record.epoch)
        ends = rows[links.seeds]
        scores = (ends[links.src] * ends[links.dst]).sum(1)
        loss = F.binary_cross_entropy_with_logits(scores, links.labels.double())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert record.loss == pytest.approx(float(loss.detach()), rel=1e-9)
    trainer = trainer_of(twin, graph)
    measured = graph.links
    with torch.no_grad():
        rows = plain_rows(twin, graph)  # type: ignore[arg-type]
    for split, mask in measured.splits.items():
        ours = measured.src[mask]
        true = (rows[ours] * rows[measured.dst[mask]]).sum(-1)
        false = (rows[ours].unsqueeze(1) * rows[measured.negatives[mask]]).sum(-1)
        expected = link_metrics(true, false)
        metrics = trainer.evaluate()[split]
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-9)
        loss = (F.softplus(-true).mean() + F.softplus(false).mean()) / 2
        assert metrics["loss"] == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.parametrize("options", [{"batch_size": 1000}, {"sample": (5, 5), "batch_size": 512}])
def test_a_run_learns_and_says_what_it_trains(options: dict[str, Any]) -> None:
    trainer = trainer_of(ModelConfig(model="sage", hidden=32), communities(), epochs=30, lr=0.01, **options)
    assert trainer.monitor == "val/mrr"
    assert ("512 links with 5,5" in repr(trainer)) == ("sample" in options)
    result = trainer.fit()
    assert result.metrics["test"]["roc_auc"] > 0.8
    assert set(result.metrics["test"]) == {"loss", "mrr", "hits_1", "hits_3", "hits_10", "roc_auc"}
    assert set(result.history[-1].metrics["val"]) == {"loss", "mrr"}


def test_other_negatives_or_batches_are_another_run(tmp_path: Path) -> None:
    config, given = ModelConfig(model="sage", hidden=8), {"run_dir": tmp_path, "sample": (4, 4), "batch_size": 700}
    trainer_of(config, communities(), **given, epochs=1).fit()
    for other, said in (
        ({"negatives": 2}, "negatives was 1, is 2"),
        ({"batch_size": 9}, "batch_size was 700, is 9"),
        ({"sample": (4, 3)}, "sample was .*, is "),
    ):
        with pytest.raises(CheckpointError, match=f"train.{said}"):
            trainer_of(config, communities(), **given | other, epochs=2).resume()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("name", "loss"), [("gat", "link_bce"), ("gcn", "link_softmax"), ("rgcn", "link_softmax")])
def test_mini_batches_of_all_neighbours_have_the_losses_and_gradients_of_the_whole_graph(
    name: str, loss: str
) -> None:
    graph = typed() if name == "rgcn" else communities(60)
    model = model_of(graph, model=name)
    trainer = trainer_of(model, graph, loss=loss, weights="last")
    predictor, prepared = trainer.predictor, trainer.prepared
    parameters = list(model.parameters())
    options: dict[str, Any] = {"task": LINK_TASK, "batch_size": 50, "negatives": 3}
    whole = LinkEpochs(predictor, prepared, TrainConfig(**options))
    fanouts = (-1,) * count_hops(model)
    sampled = SampledEpochs(predictor, prepared, TrainConfig(sample=fanouts, keep_positives=True, **options))
    assert whole.num_batches == sampled.num_batches > 1
    for ours, theirs in zip(whole.steps(2), sampled.steps(2), strict=True):
        assert ours.num_labelled == theirs.num_labelled
        losses = [ours.loss(), theirs.loss()]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-10)
        gradients = [
            torch.autograd.grad(each, parameters, allow_unused=True, materialize_grads=True) for each in losses
        ]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def epoch_of(predictor: Predictor, graph: Graph) -> list[Tensor]:
    """Losses and gradients of an epoch of several steps, and what is measured, embedded and predicted."""
    model, prepared, found = predictor.model, predictor.prepare(alone(graph)), list[Tensor]()
    predictor.try_out(prepared)
    model.train()
    for step in LinkEpochs(predictor, prepared, TrainConfig(task=LINK_TASK, batch_size=50, negatives=3)).steps(1):
        model.zero_grad()
        loss = step.loss()
        loss.backward()
        loss, _ = step.complete(loss.detach(), step.num_edges)
        found += [loss, *(each.grad.clone() for each in model.parameters())]  # type: ignore[union-attr]
    links = (torch.arange(9), torch.arange(9) + 7)
    found += [predictor.logits(prepared), predictor.embed(prepared)]
    found.append(predictor.predict(prepared, probabilities=True, links=links))
    predictor.release()
    return found


# PyTorch traces a model by patching modules, in one thread at a time: models that do not stream are traced in each.
@pytest.mark.parametrize(("num_workers", "streams"), [(1, False), (1, True), (2, True), (3, True)])
def test_workers_and_budgets_have_the_numbers_of_one_process_in_memory(
    num_workers: int, streams: bool, tmp_path: Path
) -> None:
    graph = communities(60)
    models = [model_of(graph, decoder="mlp") for _ in range(num_workers + 1)]

    def work(workers: Workers) -> list[Tensor]:
        streaming = Streaming(memory_bytes=60_000, spill=tmp_path / str(workers.rank)) if streams else None
        return epoch_of(predictor_of(models[workers.rank], graph, workers=workers, streaming=streaming), graph)

    expected = epoch_of(predictor_of(models[-1], graph), graph)
    for found in in_threads(work, num_workers):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def held_out(kind: str) -> Graph:
    if kind == "undirected":
        return communities()
    graph = labelled_graph(200, 800, types=3 if kind == "typed" else 0)
    return hold_out_links(graph, train=0.8, val=0.1, negatives=4, seed=0, undirected=kind != "directed")


def joins_positive(batch: MiniBatch, block: Topology, *, undirected: bool) -> Tensor:
    """Which edges of a block join the two ends of a positive link of its batch, by the ids of the graph."""
    links, count = batch.links, batch.links.num_positive  # type: ignore[union-attr]
    ends = torch.stack([links.seeds[links.src[:count]], links.seeds[links.dst[:count]]])  # type: ignore[union-attr]
    pairs = {*zip(*ends.tolist(), strict=True), *(zip(*ends.flip(0).tolist(), strict=True) if undirected else ())}
    edges = zip(batch.src_ids[block.indices].tolist(), batch.src_ids[block.edge_dst()].tolist(), strict=True)
    return torch.tensor([edge in pairs for edge in edges])


def are_known(topology: Topology) -> Tensor:
    """Whether an edge joins a source to a destination, bool [num_vertices, num_vertices]."""
    found = torch.zeros(topology.num_src, topology.num_src, dtype=torch.bool)
    found[topology.indices.long(), topology.edge_dst().long()] = True
    return found


@pytest.mark.parametrize("kind", ["undirected", "stored once", "directed", "typed"])
@pytest.mark.parametrize("fanouts", [(4,), (-1, -1), (3, 2)])
def test_no_message_tells_of_the_links_of_its_own_mini_batch(kind: str, fanouts: tuple[int, ...]) -> None:
    graph = held_out(kind)
    model = model_of(graph, model="rgcn" if kind == "typed" else "gcn", layers=len(fanouts))
    predictor = trainer_of(model, graph).predictor
    prepared = predictor.prepare(alone(graph))
    options: dict[str, Any] = {"task": LINK_TASK, "batch_size": 100, "sample": fanouts}

    def batches(**more: Any) -> list[MiniBatch]:
        source = SampledEpochs(predictor, prepared, TrainConfig(**options, **more))
        with source.minibatches.batches(1) as found:
            return list(found)

    learned, num_left_out = are_known(graph.topology), 0
    kept, ahead = batches(keep_positives=True), batches(sampling_threads=2, batches_ahead=3)
    for batch, whole, other in zip(batches(), kept, ahead, strict=True):
        assert torch.equal(batch.src_ids, whole.src_ids)
        links = batch.links
        src, dst = (links.seeds[ends[links.num_positive :]] for ends in (links.src, links.dst))
        assert not learned[src, dst].any()
        assert kind == "directed" or not learned[dst, src].any()
        for block, before, same in zip(batch.blocks, whole.blocks, other.blocks, strict=True):
            assert not joins_positive(batch, block, undirected=kind != "directed").any()
            leaks = joins_positive(whole, before, undirected=kind != "directed")
            num_left_out += int(leaks.sum())
            # All other edges stay, with the data that the graph gives them.
            assert torch.equal(block.edge_ids, before.edge_ids[~leaks])  # type: ignore[index, arg-type]
            assert torch.equal(block.indices, before.indices[~leaks])
            assert torch.equal(block.edge_dst(), before.edge_dst()[~leaks])
            for name, rows in block.edge_data.items():
                assert torch.equal(rows, prepared.graph.topology.edge_data[name][block.edge_ids])  # type: ignore[index]
            assert torch.equal(block.edge_ids, same.edge_ids)  # type: ignore[arg-type]
            assert torch.equal(block.indices, same.indices)
    assert num_left_out > 0


def test_scores_of_many_links_are_computed_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = communities()
    model = model_of(graph, decoder="mlp")
    predictor = predictor_of(model, graph)
    prepared, parameters = predictor.prepare(alone(graph)), list(model.parameters())
    source = LinkEpochs(predictor, prepared, TrainConfig(task=LINK_TASK))
    found = []
    for at_once in (1 << 22, 8 * 100):
        monkeypatch.setattr("sagann.train.heads.CHECKED_AT_ONCE", at_once)
        (step,) = source.steps(1)
        loss = step.loss()
        found.append((loss.detach(), torch.autograd.grad(loss, parameters), predictor.logits(prepared)))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][2], found[1][2])
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_pairs_are_scored_with_messages_along_all_edges_that_are_given() -> None:
    graph = communities()
    trainer = trainer_of(ModelConfig(model="sage", hidden=16), graph)
    trainer.fit()
    links = graph.links
    pairs = (links.src, links.dst)
    probabilities = trainer.predict(links=pairs, probabilities=True)
    rows = trainer.embed()
    assert rows.shape == (graph.num_vertices, 16)
    assert_close(probabilities, (rows[links.src] * rows[links.dst]).sum(1).sigmoid())
    assert torch.equal(trainer.predict(links=pairs), (probabilities > 0.5).to(torch.uint8))
    # A graph without held-out links: all its edges carry messages.
    other = sbm_graph(
        50, num_classes=2, average_degree=8, homophily=0.9, num_features=16, feature_noise=0.5, seed=1
    )
    assert trainer.predict(other, links=(torch.tensor([0]), torch.tensor([1])), probabilities=True).shape == (1,)
    for wrong, message in (
        (None, "no pairs of vertices to score"),
        ((links.src,), "another form"),
        ((links.src, links.dst, links.src), "another form"),
        ((links.src, links.dst[:2]), "another form"),
        ((torch.tensor([300]), torch.tensor([0])), "300"),
        ((torch.tensor([0.5]), torch.tensor([0])), "int64"),
    ):
        with pytest.raises(InputError, match=message):
            trainer.predict(links=wrong)


def test_types_of_links_are_learned_and_asked_for() -> None:
    graph = typed()
    trainer = trainer_of(ModelConfig(model="rgcn", hidden=8), graph)
    assert isinstance(trainer.model, LinkModel)
    assert trainer.model.decoder == "distmult"
    before = trainer.model.relations.detach().clone()
    trainer.fit()
    assert not torch.equal(before, trainer.model.relations)
    one, rows = torch.tensor([0]), trainer.embed()
    for kind in range(3):
        logit = (rows[0] * trainer.model.relations[kind] * rows[1]).sum().detach()
        found = trainer.predict(links=(one, one + 1, one + kind), probabilities=True)
        assert_close(found, logit.sigmoid().unsqueeze(0))
    with pytest.raises(InputError, match="another form"):
        trainer.predict(links=(one, one))


class Distance(nn.Module):
    """Scores a link by the distance of the rows of its ends, as ``change`` makes it."""

    def __init__(self, change: Callable[[Tensor, Distance], Tensor] = lambda scores, model: scores) -> None:
        super().__init__()
        self.gnn = GNN([SAGE(16, 8), SAGE(8, 4)])
        self.bias = nn.Parameter(torch.ones(1))
        self.change = change

    def forward(self, hops: Any, x: Tensor) -> Tensor:
        return self.gnn(hops, x)

    def score(self, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        assert types is None
        return self.change(self.bias - (src - dst).square().sum(-1), self)


def test_a_model_may_score_links_itself_in_another_dtype_than_the_rows(tmp_path: Path) -> None:
    def model() -> Distance:
        return Distance(lambda scores, model: scores.half())

    trainer = trainer_of(model(), communities(), run_dir=tmp_path / "run", epochs=20, lr=0.01)
    found = trainer.fit().metrics["test"]
    assert found["roc_auc"] > 0.7
    assert load_run(tmp_path / "run", model=model()).evaluate(communities())["test"] == found
    one = torch.tensor([0])
    assert trainer.predict(links=(one, one + 1), probabilities=True).dtype == torch.float16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scores, model: scores.unsqueeze(1), r"score must give a logit for each link.*Distance.score"),
        (lambda scores, model: scores.to_sparse(), r"of layout torch.sparse_coo.*Distance.score"),
        (lambda scores, model: scores - scores.mean(), r"score must treat links independently.*Distance.score"),
        (
            lambda scores, model: scores * (1 if model.training else torch.nan),
            "a score is not finite.*model Distance",
        ),
    ],
)
def test_scores_that_cannot_be_measured_are_refused(change: Any, message: str) -> None:
    with pytest.raises((InputError, LayerError), match=message):
        trainer_of(Distance(change), communities()).fit()


class Overwriting(nn.Module):
    """Overwrites the types that its score gets."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = GNN([SAGE(8, 8)])
        self.weights = nn.Parameter(torch.ones(3))

    def forward(self, hops: Any, x: Tensor) -> Tensor:
        return self.gnn(hops, x)

    def score(self, src: Tensor, dst: Tensor, types: Tensor) -> Tensor:
        # Pairs of types share a weight.
        return self.weights[types.add_(1).div_(2, rounding_mode="floor")] * (src * dst).sum(-1)


def test_a_score_may_overwrite_the_types_that_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = typed()
    trainer, before = trainer_of(Overwriting(), graph), graph.links.types.clone()
    trainer.fit()
    types = torch.tensor([2, 1])
    expected = trainer.evaluate()
    trainer.predict(links=(types, types - 1, types))
    # Slices of training are computed again in the backward pass.
    monkeypatch.setattr("sagann.train.heads.CHECKED_AT_ONCE", 8 * 10)
    (step,) = trainer._session().source.steps(1)
    step.loss().backward()
    assert trainer.evaluate()["test"] == pytest.approx(expected["test"], rel=1e-5)
    assert graph.links.types.equal(before)
    assert types.tolist() == [2, 1]


class Scorer(nn.Module):
    """Scores by a module that takes one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn, self.score = GNN([SAGE(16, 8)]), nn.Linear(8, 6)

    def forward(self, hops: Any, x: Tensor) -> Tensor:
        return self.gnn(hops, x)


def test_a_score_that_takes_other_arguments_is_refused_before_anything_runs() -> None:
    message = r"cannot be called as model.score\(src, dst, types\).*score\(input.*too many positional.*model Scorer"
    with pytest.raises(InputError, match=message):
        trainer_of(Scorer(), communities())


def test_a_model_file_may_score_links_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\nfrom sagann.nn import SAGE\n\n\nclass Mine(nn.Module):\n"
        "    def __init__(self, in_dim, out_dim):\n        super().__init__()\n        self.only = SAGE(in_dim, out_dim)\n\n"
        "    def forward(self, hops, x):\n        return self.only(hops[0], x)\n\n"
        "    def score(self, src, dst, types):\n        return -(src - dst).abs().sum(-1)\n"
    )
    config = ModelConfig(model=f"{tmp_path / 'mine.py'}:Mine", hidden=5)
    trainer = trainer_of(config, communities())
    assert type(trainer.model).__name__ == "Mine"
    assert trainer.embed().shape[1] == 5
    trainer.fit()
    with pytest.raises(InputError, match="decoder is 'mlp', expected auto when Mine has a score of its own"):
        trainer_of(replace(config, decoder="mlp"), communities())


def test_a_decoder_is_refused_where_links_are_not_learned(caplog: pytest.LogCaptureFixture) -> None:
    config = ModelConfig(model="sage", hidden=8, decoder="dot")
    with pytest.raises(InputError, match=r"decoder is 'dot', .* links are not learned.*ModelConfig.decoder"):
        Trainer(config, labelled_graph(), progress=False)
    # No note says beforehand that it is ignored.
    assert not caplog.text


def test_an_own_loss_and_own_metrics_get_a_row_for_each_true_link() -> None:
    shapes: set[tuple[int, int]] = set()

    def margin(scores: Tensor, places: Tensor) -> Tensor:
        shapes.add((scores.shape[1], int(places.abs().sum())))
        return (1 - scores[:, :1] + scores[:, 1:]).clamp(min=0)

    metrics = {"first": lambda scores, places: float((scores.argmax(1) == places).float().mean())}
    config = ModelConfig(model="sage", hidden=8)
    trainer = trainer_of(config, communities(), negatives=4, loss=margin, metrics=metrics)
    found = trainer.fit().metrics["test"]
    # Tried and trained with four negative links, measured with nine.
    assert shapes == {(5, 0), (10, 0)}
    assert found["first"] == pytest.approx(found["hits_1"], abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"memory": "1GiB", "profile": True},
            "profile is True, expected False when links are learned and sample is not set",
        ),
        ({"task": "classification", "negatives": 2}, "negatives is 2, expected 1 when links are not learned"),
        (
            {"keep_positives": True},
            "keep_positives is True, expected False when links are learned and sample is not set",
        ),
        ({"loss": "bce"}, "'bce' is for multi-label, the task is link-prediction"),
        ({"class_weights": "balanced"}, "only the loss cross_entropy has class weights"),
        ({"monitor": "val/accuracy"}, "of another task.*mrr"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trainer_of(
            ModelConfig(model="sage", hidden=8),
            replace(communities(), splits={"train": torch.arange(300) < 9}),
            **options,
        )


def test_graphs_without_links_to_learn_or_to_measure_are_refused() -> None:
    graph = communities()
    links = graph.links
    config = ModelConfig(model="sage", hidden=8)
    with pytest.raises(InputError, match=r"task does not fit.*hold_out_links"):
        trainer_of(config, replace(graph, links=None))
    with pytest.raises(InputError, match="no link to choose a model by"):
        trainer_of(config, replace(graph, links=replace(links, splits={"test": links.splits["test"]})))
    loops = torch.arange(300)
    topology = type(graph.topology).from_coo(src=loops, dst=loops, num_src=300)
    with pytest.raises(InputError, match="no link to learn"):
        trainer_of(config, replace(graph, topology=topology))
    trained = trainer_of(config, graph)
    with pytest.raises(InputError, match="no links to measure"):
        trained.evaluate(replace(graph, links=None))
    with pytest.raises(InputError, match="decoder = 'distmult'"):
        trainer_of(replace(config, decoder="distmult"), graph)
    with pytest.raises(InputError, match="only a model of links scores pairs"):
        Trainer(config, labelled_graph(), progress=False).predict(links=(loops, loops))


@pytest.mark.parametrize(("options", "num_links"), [({"batch_size": 1000}, "1000"), ({"sample": (3, 3)}, "1024")])
def test_more_negative_links_than_memory_holds_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], num_links: str
) -> None:
    trainer = trainer_of(ModelConfig(model="sage", hidden=8), communities(), negatives=60_000, **options)
    monkeypatch.setattr(
        "sagann.free_space.host_room", lambda: Room(name="memory", total_bytes=1 << 30, free_bytes=1 << 30)
    )
    with pytest.raises(
        InputError, match=rf"does not fit memory.*{num_links} links, with 60000 negative.*--negatives.*--batch-size"
    ):
        trainer.fit()


@pytest.mark.parametrize("types", [0, 3])
def test_links_to_measure_that_are_learned_as_well_are_named(caplog: pytest.LogCaptureFixture, types: int) -> None:
    graph = labelled_graph(types=types)
    held = replace(hold_out_links(graph, train=0.7, val=0.1, negatives=4, seed=0), labels=None, num_classes=0)
    links = held.links
    config = ModelConfig(model="rgcn" if types else "sage", hidden=8)
    trainer_of(config, held)
    assert "is learned" not in caplog.text
    leaking = replace(held, topology=graph.topology)
    trainer_of(config, leaking)
    count = int(links.splits["test"].sum())
    assert f"{count} of {count} links of the split 'test' are edges of the graph" in caplog.text
    assert "the split 'train'" not in caplog.text
    caplog.clear()
    # The reverse of an edge is the same link, unless directions count.
    turned = replace(links, src=links.dst, dst=links.src, undirected=False)
    for undirected in (False, True):
        trainer_of(config, replace(leaking, links=replace(turned, undirected=undirected)))
        assert (f"{count} of {count}" in caplog.text) == undirected
    caplog.clear()
    if types:
        # A parallel edge of another type tells of another link.
        others = graph.topology.with_edge_data(type=(graph.topology.edge_data["type"] + 1) % 3)
        trainer_of(config, replace(held, topology=others))
        assert f"{count} of {count}" not in caplog.text


def test_a_hot_tier_holds_the_rows_that_batches_of_links_read_most() -> None:
    graph = replace(communities(), splits={"train": torch.arange(300) < 3})
    sampled: dict[str, Any] = {"epochs": 1, "sample": (3, 3), "batch_size": 30}
    config = ModelConfig(model="sage", hidden=8, dropout=0.0)
    trainer = trainer_of(config, graph, **sampled, hot="10%", cache="static")
    (store,) = trainer._session().source._stores
    assert isinstance(store, TieredFeatures)
    # Both ends of a positive and of a negative link, of which there are 30 each in a batch.
    seeds = torch.ones(graph.num_vertices, dtype=torch.bool)
    scores = score_vertices(graph, "vip", fanouts=(3, 3), batch_size=120, seeds=seeds)
    store.rows(hottest(scores)[: store.num_hot_rows])
    assert (store.num_hot_rows, store.traffic().cold.rows) == (30, 0)
    assert numbers_of(trainer.fit()) == numbers_of(trainer_of(config, graph, **sampled).fit())
