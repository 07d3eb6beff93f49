"""Checkpoints with right checksums and wrong content: refused by the name of the entry, or restored as they are."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings, strategies as st
from torch import Tensor, nn

from sagann.errors import CheckpointError
from sagann.train import EpochProgress, LogReporter, TrainConfig, Trainer, load_run
from sagann.train.atomic import digest, file_digest, write_tensors
from sagann.train.checkpoint import Checkpoint, CheckpointFolder, Position, write_state
from sagann.train.description import description_of
from sagann.train.expectation import require_optimizer, require_weights
from sagann.train.resources import seeded
from sagann.train.run_folder import RunFolder
from sagann.train.session import TrainSession
from sagann.train.start import continue_run
from tests.train.runs import CPU, assert_same_bits, community_graph, seeded_model, weights_of

EPOCHS = 4
WITHIN = Position(EPOCHS - 1, batch=2)
"The position of the checkpoint of a sampled run: it is stopped within its last epoch."
RUNS: dict[str, dict[str, Any]] = {
    "adam": {"monitor": "val/loss", "patience": 3, "scheduler": "ReduceLROnPlateau"},
    "momentum": {
        "optimizer": "SGD",
        "optimizer_options": {"momentum": 0.9},
        "scheduler": "MultiStepLR",
        "scheduler_options": {"milestones": [2, 3]},
    },
    "lbfgs": {"optimizer": "LBFGS", "optimizer_options": {"max_iter": 3}, "weights": "last"},
    "sampled": {"sample": (4, 3), "batch_size": 8},
}


class Told(LogReporter):
    """Keeps messages."""

    def __init__(self, messages: list[str]) -> None:
        self.on_message = messages.append  # type: ignore[method-assign]


def trainer_of(
    folder: Path, options: dict[str, Any], *, checkpoint_every: int = EPOCHS, reporter: LogReporter | None = None
) -> Trainer:
    config = TrainConfig(epochs=EPOCHS, checkpoint_every=checkpoint_every, device="cpu", lr=0.05, **options)
    return Trainer(seeded_model(), community_graph(), config, run_dir=folder, reporter=reporter)


class StopWithin(LogReporter):
    """Stops a sampled run."""

    trainer: Trainer

    def on_batch(self, progress: EpochProgress) -> None:
        if (progress.epoch - 1, progress.batch) == (WITHIN.epoch, WITHIN.batch):
            self.trainer.stop()


class Written:
    """A run with one checkpoint, which may be written again with other content and right checksums."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        reporter = StopWithin()
        # On a slow machine one is written between two batches or epochs as well.
        options = {**options, "keep_checkpoints": 1}
        self.trainer = reporter.trainer = trainer_of(folder, options, reporter=reporter)
        self.trainer.fit()
        self.folder = RunFolder(folder)
        self.position = WITHIN if "sample" in options else Position(EPOCHS)
        assert self.folder.checkpoints.positions() == [self.position]
        (self.path,) = (folder / "checkpoints").iterdir()
        self.history = (folder / "metrics.jsonl").read_bytes()
        content = json.loads((self.path / "state.json").read_text())["content"]
        self.state: dict[str, Any] = content["state"]
        self.tensors = dict(load_tensors(self.path))

    def write(self, state: Any, tensors: dict[str, Tensor], **place: Any) -> None:
        write_tensors(self.path / "state.safetensors", tensors)
        checksum = file_digest(self.path / "state.safetensors")
        content = {**asdict(self.position), **place, "state": state, "tensors_checksum": checksum}
        document = {"format": 1, "checksum": digest(json.dumps(content).encode()), "content": content}
        (self.path / "state.json").write_text(json.dumps(document))

    def restored(self) -> TrainSession:
        """A new session, continued from the checkpoint."""
        (self.folder.path / "metrics.jsonl").write_bytes(self.history)
        session = self.trainer._parts.session()
        continue_run(session, self.folder, description_of(self.trainer._parts, session), lambda text: None)
        return session


def load_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(path / "state.safetensors").items()}


@pytest.fixture(scope="module", params=sorted(RUNS))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("run"), RUNS[request.param])


def places_in(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in JSON values. Of the words of a generator, the first three are enough."""
    found = [place] if place else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items)[: 3 if isinstance(value, list) and len(value) > 600 else None]:
        found += places_in(item, (*place, key))
    return found


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


JUNK: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2**31, 2**32, 2**63, 10**30, 0.5, -0.0, 1e308, math.nan, math.inf]
    ),
    st.sampled_from(["", "nan", "MT19937", "model.first.own.weight", [], {}, [[]], {"a": 1}]),
    st.sampled_from([{"$float": "nan"}, {"$float": "inf"}, {"$tensor": "model.first.own.weight"}, {"$tuple": []}]),
    st.sampled_from(
        [{"$dict": []}, {"$dict": [[0, 1]]}, {"$pickle": "x"}, {"$set": [1]}, {"$ordered": [["a", 1]]}]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
)


@st.composite
def changes_of_state(draw: st.DrawFn, state: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A state with one entry replaced, removed, added, or exchanged for another one; and the part it belongs to."""
    changed = copy.deepcopy(state)
    place = draw(st.sampled_from(places_in(changed)))
    parent, key, part = at(changed, place[:-1]), place[-1], str(place[0])
    match draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "exchange"])):
        case "remove":
            del parent[key]
        case "add" if isinstance(parent, dict):
            added = draw(st.text(max_size=3))
            parent[added] = draw(JUNK)
            part = added if parent is changed else part
        case "add":
            parent.insert(key, draw(JUNK))
        case "exchange":
            parent[key] = copy.deepcopy(at(state, draw(st.sampled_from(places_in(state)))))
        case _:
            parent[key] = draw(JUNK)
    return changed, part


@st.composite
def changes_of_tensors(draw: st.DrawFn, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors of which one has another type, shape, value or name, or is gone; and the names."""
    name = other = draw(st.sampled_from(sorted(tensors)))
    tensor, changed = tensors[name], dict(tensors)
    match draw(st.sampled_from(["type", "shape", "bytes", "rename", "remove", "add", "exchange"])):
        case "type":
            kinds = [torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.bool]
            changed[name] = tensor.to(draw(st.sampled_from(kinds)))
        case "shape":
            forms = [tensor.reshape(-1), tensor[None], tensor.reshape(-1)[:-1], tensor.new_zeros(0), tensor.sum()]
            changed[name] = draw(st.sampled_from(forms)).contiguous().clone()
        case "bytes":
            content = bytearray(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            for position in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
                content[position] = draw(st.integers(0, 255))
            changed[name] = torch.frombuffer(content, dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)
        case "rename":
            changed[name + draw(st.sampled_from(["'", ".x", "_"]))] = changed.pop(name)
        case "remove":
            del changed[name]
        case "add":
            other = draw(st.text("abc.", min_size=1, max_size=4))
            changed[other] = tensor.clone()
        case _:
            other = draw(st.sampled_from(sorted(tensors)))
            changed[name], changed[other] = tensors[other].clone(), tensor.clone()
    return changed, [name, other]


def plain(value: Any) -> Any:
    """A value to compare by bits, without the order of keys and the kinds of containers."""
    if isinstance(value, Tensor):
        return (str(value.dtype), list(value.shape), value.reshape(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def check(written: Written, state: dict[str, Any], tensors: dict[str, Tensor], parts: Sequence[str]) -> str:
    """Refused with an error that names one of the parts, or restored to exactly what is in the files."""
    refusal: CheckpointError | None = None
    with seeded(0, CPU):
        written.write(state, tensors)
        try:
            session = written.restored()
        except CheckpointError as error:
            refusal = error
        if refusal is None:
            found = CheckpointFolder(written.path.parent, keep=1).read(written.position)
            again = session.checkpoint(run=found.state["run"], history_bytes=found.state["history_bytes"])
            assert plain(again.state) == plain(found.state)
            assert again.position == written.position
            return "restored"
    if refusal.what == "metrics.jsonl does not reach the checkpoint":
        assert "history_bytes" in parts
    elif refusal.what == "the checkpoint belongs to another run":
        assert "run" in parts
    else:
        assert refusal.what == "every checkpoint is damaged"
        assert any(part in refusal.value for part in parts), (parts, refusal.value)
    return "refused"


PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(PATIENT, max_examples=150)
@given(data=st.data())
def test_every_entry_of_a_state_is_refused_or_restored_as_it_is(written: Written, data: st.DataObject) -> None:
    state, part = data.draw(changes_of_state(written.state))
    event(check(written, state, written.tensors, [part]))


@settings(PATIENT, max_examples=150)
@given(data=st.data())
def test_every_tensor_is_refused_or_restored_as_it_is(written: Written, data: st.DataObject) -> None:
    tensors, names = data.draw(changes_of_tensors(written.tensors))
    event(check(written, written.state, tensors, [name.partition(".")[0] for name in names]))


def test_what_was_written_is_restored(written: Written) -> None:
    assert check(written, written.state, written.tensors, []) == "restored"
    with seeded(0, CPU):
        session = written.restored()
    assert session.position == written.position
    assert len(session.history) == session.epoch


@pytest.mark.parametrize("name", ["epoch", "batch"])
@pytest.mark.parametrize("number", [None, True, EPOCHS + 1, -1, "4", 4.0, 10**30])
def test_another_position_is_refused(written: Written, name: str, number: Any) -> None:
    written.write(written.state, written.tensors, **{name: number})
    with pytest.raises(CheckpointError, match=rf"every checkpoint is damaged.*state\.json is of {name}"):
        written.restored()


@pytest.fixture
def sampled(tmp_path: Path) -> Written:
    return Written(tmp_path, RUNS["sampled"])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("num_labelled", 1, r"progress\.num_labelled is 1, expected an integer from 2 to 30"),
        ("num_edges", -1, r"progress\.num_edges is -1, expected an integer from 0"),
        ("loss", {"$float": "nan"}, r"progress\.loss is nan, expected a finite number"),
        ("train_s", None, r"progress\.train_s is None, expected a finite number"),
        ("more", 1, r"progress\.more is unknown to the run"),
    ],
)
def test_sums_that_are_not_of_the_epoch(sampled: Written, name: str, value: Any, problem: str) -> None:
    before = weights_of(sampled.trainer.model)
    state = {**sampled.state, "progress": {**sampled.state["progress"], name: value}}
    sampled.write(state, sampled.tensors)
    with pytest.raises(CheckpointError, match=rf"every checkpoint is damaged: .*{problem}"):
        sampled.restored()
    # Nothing was applied.
    assert_same_bits(weights_of(sampled.trainer.model), before)


def test_sums_are_there_within_an_epoch_only(sampled: Written, tmp_path: Path) -> None:
    without = {name: value for name, value in sampled.state.items() if name != "progress"}
    sampled.write(without, sampled.tensors)
    with pytest.raises(CheckpointError, match=r"state\.progress is missing"):
        sampled.restored()
    whole = Written(tmp_path / "whole", {})
    whole.write({**whole.state, "progress": sampled.state["progress"]}, whole.tensors)
    with pytest.raises(CheckpointError, match=r"state\.progress is unknown to the run"):
        whole.restored()


def test_more_batches_than_the_epoch_has(sampled: Written) -> None:
    checkpoint = CheckpointFolder(sampled.path.parent, keep=1).read(WITHIN)
    place = Position(WITHIN.epoch, batch=4)
    write_state(
        sampled.path.with_name(f"epoch-{place.epoch:06d}-batch-{place.batch:06d}"),
        replace(checkpoint, position=place),
    )
    shutil.rmtree(sampled.path)
    with pytest.raises(CheckpointError, match="progress is that of 4 batches, expected fewer than 4"):
        sampled.restored()


@pytest.fixture
def adam(tmp_path: Path) -> Written:
    return Written(tmp_path, RUNS["adam"])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "model.first.own.weight",
            torch.ones(8, 8, dtype=torch.int64),
            r"torch\.int64 \[8, 8\], expected torch\.float32",
        ),
        ("model.first.own.weight", torch.ones(8, 7), r"\[8, 7\], expected torch\.float32 \[8, 8\]"),
        ("optimizer.state.0.exp_avg", torch.ones(8), r"\[8\], expected torch\.float32 \[8, 8\]"),
        ("optimizer.state.0.exp_avg_sq", torch.ones(8, 8, dtype=torch.int32), r"torch\.int32 \[8, 8\], expected"),
        ("optimizer.state.0.step", torch.tensor(-1.0), "-1, expected a finite number of at least 0"),
        ("optimizer.state.0.step", torch.tensor(math.nan), "nan, expected a finite number"),
        ("best.weights.norm.num_batches_tracked", torch.tensor(1.0), r"torch\.float32 \[\], expected torch\.int64"),
        ("rng.torch", torch.zeros(16, dtype=torch.uint8), "no state of its generator"),
        ("rng.torch", torch.zeros(5056, dtype=torch.uint8), "no state of its generator"),
    ],
)
def test_tensors_that_are_not_the_runs(adam: Written, name: str, value: Tensor, problem: str) -> None:
    before = {key: tensor.clone() for key, tensor in adam.trainer.model.state_dict().items()}
    adam.write(adam.state, {**adam.tensors, name: value})
    with pytest.raises(CheckpointError, match=rf"every checkpoint is damaged: .*{name}.*{problem}"):
        adam.restored()
    # Nothing was applied.
    assert all(torch.equal(tensor, before[key]) for key, tensor in adam.trainer.model.state_dict().items())


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (("best", "value"), 0.0, r"best\.value is 0\.0, the history says"),
        (("best", "epoch"), 9, r"best\.epoch is 9, the history says"),
        (("best", "improved"), 1, r"best\.improved is 1, the history says"),
        (("best", "weights"), None, r"best\.weights is a NoneType, expected a mapping"),
        (("history_epochs",), 3, "history_epochs is 3, expected 4"),
        (("history_bytes",), -1, "history_bytes is -1, expected an integer from 0"),
        (("scheduler", "last_epoch"), 5, r"scheduler\.last_epoch is 5, expected an integer from 0 to 4"),
        (("scheduler", "mode_worse"), 0, r"scheduler\.mode_worse is 0, expected inf"),
        (("scheduler", "mode"), "max", r"scheduler\.mode is 'max', expected 'min'"),
        (("scheduler", "best"), {"$float": "nan"}, r"scheduler\.best is nan, expected a finite number"),
        (("scheduler",), None, "scheduler is a NoneType, expected a mapping"),
        (("optimizer", "param_groups", 0, "amsgrad"), True, r"param_groups\.0\.amsgrad is True, expected False"),
        (("optimizer", "param_groups", 0, "params"), [0], r"param_groups\.0\.params is a list of 1, expected"),
        (
            ("optimizer", "param_groups", 0, "lr"),
            "fast",
            r"param_groups\.0\.lr is 'fast', expected a finite number",
        ),
        (("optimizer", "param_groups"), [], r"optimizer\.param_groups is a list of 0, expected a list of 1"),
        (
            ("rng", "numpy", "$tuple", 2),
            625,
            r"rng\.numpy is no state .* position that is an integer from 0 to 624",
        ),
        (("rng", "numpy", "$tuple", 4), True, r"rng\.numpy is no state that its generator can have"),
        (("rng", "python", "$tuple", 0), 2, r"rng\.python is no state"),
    ],
)
def test_entries_that_are_not_the_runs(adam: Written, place: tuple[Any, ...], value: Any, problem: str) -> None:
    state = copy.deepcopy(adam.state)
    at(state, place[:-1])[place[-1]] = value
    # Tensors without an entry would be damage as well.
    left_out = "best." if place == ("best", "weights") else None
    tensors = {name: tensor for name, tensor in adam.tensors.items() if not left_out or left_out not in name}
    adam.write(state, tensors)
    with pytest.raises(CheckpointError, match=rf"every checkpoint is damaged: .*{problem}"):
        adam.restored()


def test_the_state_of_a_parameter_that_does_not_exist(adam: Written) -> None:
    checkpoint = CheckpointFolder(adam.path.parent, keep=1).read(Position(EPOCHS))
    checkpoint.state["optimizer"]["state"][99] = copy.deepcopy(checkpoint.state["optimizer"]["state"][0])
    shutil.rmtree(adam.path)
    write_state(adam.path, checkpoint)
    with pytest.raises(CheckpointError, match=r"optimizer\.state\.99 belongs to no parameter, there are"):
        adam.restored()


def test_wrong_weights_are_passed_over_for_the_checkpoint_before(tmp_path: Path) -> None:
    options = {"keep_checkpoints": 2, "weights": "last"}
    expected = trainer_of(tmp_path, options, checkpoint_every=2)
    expected.fit()
    newest = tmp_path / "checkpoints" / f"epoch-{EPOCHS:06d}"
    found = CheckpointFolder(newest.parent, keep=2).read(Position(EPOCHS))
    weights = {name: tensor.to(torch.int64) for name, tensor in found.state["model"].items()}
    shutil.rmtree(newest)
    write_state(newest, Checkpoint(position=Position(EPOCHS), state={**found.state, "model": weights}))
    messages: list[str] = []
    resumed = trainer_of(tmp_path, options, checkpoint_every=2, reporter=Told(messages))
    assert resumed.fit(resume=True).epochs == EPOCHS
    assert ["checkpoint is damaged: model." in text and "torch.int64" in text for text in messages] == [True]
    assert_same_bits(weights_of(resumed.model), weights_of(expected.model))


@pytest.mark.parametrize("finished", [True, False])
def test_weights_of_another_type_are_not_loaded(tmp_path: Path, finished: bool) -> None:
    trainer_of(tmp_path, {"weights": "last"}).fit()
    path = tmp_path / "model.safetensors"
    if finished:
        from safetensors.torch import load_file

        write_tensors(path, {name: tensor.to(torch.int64) for name, tensor in load_file(path).items()})
        summary = json.loads((tmp_path / "metrics.json").read_text())
        (tmp_path / "metrics.json").write_text(json.dumps({**summary, "weights_checksum": file_digest(path)}))
    else:
        (tmp_path / "metrics.json").unlink()
        folder = tmp_path / "checkpoints" / f"epoch-{EPOCHS:06d}"
        found = CheckpointFolder(folder.parent, keep=1).read(Position(EPOCHS))
        weights = {name: tensor.to(torch.int64) for name, tensor in found.state["model"].items()}
        shutil.rmtree(folder)
        write_state(folder, Checkpoint(position=Position(EPOCHS), state={**found.state, "model": weights}))
    with pytest.raises(
        CheckpointError, match=r"weights are of another model: model\.\S+ is torch\.int64 .* expected"
    ):
        load_run(tmp_path, model=seeded_model(), device="cpu")


OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "SparseAdam"])
def test_the_state_of_every_optimizer_is_expected_as_it_is(name: str) -> None:
    def made() -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        parameters = [nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(2, 5))]
        return parameters, getattr(torch.optim, name)(parameters)

    parameters, optimizer = made()

    def closure() -> float:
        for parameter in parameters:
            parameter.grad = 2 * parameter.detach()
        return float(sum((parameter.detach() ** 2).sum() for parameter in parameters))

    for _ in range(3):
        optimizer.step(closure)  # type: ignore[arg-type]
    require_optimizer(optimizer.state_dict(), made()[1], is_scheduled=False, name="optimizer")
    state = optimizer.state_dict()
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor) and value.ndim:
                entries[key] = value.to(torch.int64)
                with pytest.raises(ValueError, match=rf"optimizer\.state\.{index}\.{key} is torch\.int64"):
                    require_optimizer(state, made()[1], is_scheduled=False, name="optimizer")
                entries[key] = value


def test_an_optimizer_of_the_users_own_may_keep_anything() -> None:
    class Own(torch.optim.SGD):
        pass

    parameters = [nn.Parameter(torch.ones(3))]
    state = Own(parameters, lr=0.1).state_dict()
    state["param_groups"][0]["calls"] = 3
    state["state"] = {0: {"seen": {"a"}, "rows": torch.ones(3)}}
    require_optimizer(state, Own(parameters, lr=0.1), is_scheduled=False, name="optimizer")
    state["state"] = {0: {"rows": torch.ones(3, dtype=torch.int64)}}
    with pytest.raises(ValueError, match=r"optimizer\.state\.0\.rows is torch\.int64 \[3\], its parameter is"):
        require_optimizer(state, Own(parameters, lr=0.1), is_scheduled=False, name="optimizer")


def test_extra_state_of_a_module_may_be_anything() -> None:
    require_weights({"w": torch.ones(2), "_extra_state": [1]}, {"w": torch.zeros(2), "_extra_state": {}}, "model")
    with pytest.raises(ValueError, match=r"model\.w is missing"):
        require_weights({}, {"w": torch.zeros(2)}, "model")
    with pytest.raises(ValueError, match=r"model\.v is unknown to the run"):
        require_weights({"w": torch.zeros(2), "v": 1}, {"w": torch.zeros(2)}, "model")
