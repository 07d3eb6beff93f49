import signal
from pathlib import Path

import pytest

from sagann.errors import CheckpointError, InputError, Terminated
from sagann.nn import ModelConfig, build_model
from sagann.nn.user_model import require_named
from tests.graphs import labelled_graph

USERS_FILE = """
import torch
from torch import nn
import sagann

class Layer(sagann.SagaLayer):
    accumulator = "max"
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
    def apply_vertex(self, vertex, accum):
        return self.linear(vertex + accum)

class Model(nn.Module):
    num_hops = 2
    def __init__(self, in_dim, out_dim, hidden_dim=4):
        super().__init__()
        self.first, self.second = Layer(in_dim, hidden_dim), Layer(hidden_dim, out_dim)
    def forward(self, hops, x):
        return self.second(hops[1], torch.relu(self.first(hops[0], x)))

class Odd(nn.Module):
    def __init__(self, colour):
        super().__init__()

class Unstackable(sagann.SagaLayer):
    pass

number = 3
"""


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(USERS_FILE)
    return path


def test_a_users_layer_is_stacked(users_file: Path) -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model=f"{users_file}:Layer", layers=3, hidden=16), graph)
    assert [layer.linear.out_features for layer in model.layers] == [16, 16, 3]
    assert model(graph.hops(3), graph.features).shape == (53, 3)


def test_a_users_model_gets_the_sizes_it_names(users_file: Path) -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model=f"{users_file}:Model", hidden=32), graph)
    assert model.first.linear.out_features == 32
    assert model(graph.hops(2), graph.features).shape == (53, 3)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:Layer", "model file not found: '/.*/nowhere.py'"),
        ("{file}:Missing", "no such model in the file: 'Missing'; modules there: Layer, Model, Odd"),
        ("{file}:number", "no such model in the file"),
        (
            "{file}:Odd",
            "wants arguments that are not offered: missing a required argument: 'colour'; offered: in_dim, out_dim",
        ),
        ("{file}:Unstackable", "the layer cannot be stacked: Unstackable"),
    ],
)
def test_users_classes_that_cannot_be_used_are_refused(users_file: Path, reference: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(ModelConfig(model=reference.format(file=users_file)), labelled_graph())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise Own('I am no Exception')", "Own: I am no Exception"),
        ("raise Stop", "Stop"),
        ("raise GeneratorExit", "GeneratorExit"),
    ],
)
def test_a_users_file_that_fails_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(f"class Own(BaseException): pass\nclass Stop(KeyboardInterrupt): pass\n{line}\n")
    with pytest.raises(InputError, match=rf"model file failed to run: {message} \(in '.*broken.py'\)"):
        build_model(ModelConfig(model=f"{path}:Layer"), labelled_graph())


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_while_a_users_file_is_loaded_ends_the_command(
    tmp_path: Path, number: signal.Signals, kind: type[BaseException]
) -> None:
    def on_signal(*_: object) -> None:
        raise kind

    path = tmp_path / "slow.py"
    path.write_text(f"import signal\nsignal.raise_signal({int(number)})\n")
    before = signal.signal(number, on_signal)
    try:
        with pytest.raises(kind):
            build_model(ModelConfig(model=f"{path}:Layer"), labelled_graph())
    finally:
        signal.signal(number, before)


def test_a_python_file_that_only_a_file_names_is_refused() -> None:
    require_named("gcn", where="run", error=CheckpointError)
    with pytest.raises(CheckpointError) as refused:
        require_named("/some where/evil.py:Net", where="config.toml", error=CheckpointError)
    assert refused.value.value == "'/some where/evil.py:Net'"
    assert refused.value.where == "config.toml"
    assert "--model '/some where/evil.py:Net'" in refused.value.fix
