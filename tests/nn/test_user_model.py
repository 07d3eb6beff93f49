import signal
import sys
import types
from pathlib import Path

import pytest

from sagann.errors import CheckpointError, InputError, Interrupted
from sagann.nn import ModelConfig, build_model
from sagann.nn.user_model import imported_files, load_class, require_named
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
        ("{file}:Missing", "no such model in the file: 'Missing'; modules found: Layer, Model, Odd"),
        ("{file}:number", "no such model in the file"),
        ("{file}:Odd", "wants arguments that are not offered: missing a required argument: 'colour'; offered: in_dim, out_dim"),
        ("{file}:Unstackable", "the layer cannot be stacked: Unstackable"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Interrupted)])
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
    assert refused.value.message.endswith("named again: '/some where/evil.py:Net' (in config.toml)")
    assert "--model '/some where/evil.py:Net'" in refused.value.hint


OPTIONAL = """
from torch import nn
import sagann

class Layer(sagann.SagaLayer):
    accumulator = "mean"
    def __init__(self, in_dim, out_dim, *, act, slope: float = 0.1, deep=False):
        super().__init__()
        self.linear, self.options = nn.Linear(in_dim, out_dim), (act, slope, deep)
    def apply_vertex(self, vertex, accum):
        return self.linear(accum)

class Model(nn.Module):
    num_hops = 1
    def __init__(self, in_dim, out_dim, heads: "int", **others):
        super().__init__()
        self.layer, self.options = Layer(in_dim, out_dim, act="relu"), (heads, others)
    def forward(self, hops, x):
        return self.layer(hops[0], x)
"""


@pytest.fixture
def optional(tmp_path: Path) -> Path:
    path = tmp_path / "optional.py"
    path.write_text(OPTIONAL)
    return path


def test_options_reach_the_constructor(optional: Path) -> None:
    graph = labelled_graph()
    config = ModelConfig(
        model=f"{optional}:Layer", hidden=4, model_options={"act": "elu", "slope": 1, "deep": True}
    )
    assert [layer.options for layer in build_model(config, graph).layers] == [("elu", 1, True)] * 2
    config = ModelConfig(model=f"{optional}:Model", model_options={"heads": 4, "sizes": [1, 2]})
    assert build_model(config, graph).options == (4, {"sizes": [1, 2]})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Layer", {"actt": "elu"}, r"Layer has no such option: 'actt' .* Did you mean 'act'\? Known: act, slope, deep"),
        ("Layer", {"act": "elu", "slope": "steep"}, "option slope of Layer is not a number: 'steep'"),
        ("Layer", {"act": "elu", "deep": 1}, "option deep of Layer is not true or false: 1"),
        ("Layer", {"out_dim": 3}, "model_options sets an argument that has an option of its own: 'out_dim'"),
        ("Layer", {}, "the layer cannot be stacked: .* missing a required .*'act'"),
        ("Model", {"heads": 2.5}, "option heads of Model is not an integer: 2.5"),
        ("Model", {"in_dim": 2}, "model_options sets an argument that has an option of its own: 'in_dim'"),
        ("Model", {"num_layers": 2}, "model_options sets an argument that has an option of its own: 'num_layers'"),
        ("Model", {}, "wants arguments that are not offered: missing a required argument: 'heads'"),
    ],
)  # fmt: skip
def test_options_that_a_class_does_not_take_are_refused(
    optional: Path, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build_model(ModelConfig(model=f"{optional}:{name}", model_options=options), labelled_graph())


def test_a_model_file_imports_files_beside_it(tmp_path: Path) -> None:
    found = []
    for number, folder in enumerate((tmp_path / "one", tmp_path / "two")):
        folder.mkdir()
        (folder / "parts.py").write_text(f"NUMBER = {number}\n" + OPTIONAL)
        path = folder / "mine.py"
        path.write_text("from parts import NUMBER, Layer as Part\nclass Layer(Part): number = NUMBER\n")
        config = ModelConfig(model=f"{path}:Layer", model_options={"act": "relu"})
        found += [layer.number for layer in build_model(config, labelled_graph()).layers]
        (folder / "parts.py").write_text(f"NUMBER = {number + 10}\n" + OPTIONAL)
        found += [layer.number for layer in build_model(config, labelled_graph()).layers]
    assert found == [0, 0, 10, 10, 1, 1, 11, 11]


def test_options_are_those_that_a_run_gives_back() -> None:
    config = ModelConfig(model="mine.py:Net", model_options={"sizes": (1, 2), "names": {1: "a", "b": 2}})
    assert config.model_options == {"sizes": [1, 2], "names": {"1": "a", "b": 2}}
    assert hash(config) == hash(ModelConfig(model="mine.py:Net"))


def test_files_beside_a_model_are_those_that_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of an environment in the folder, nor modules that the program has imported itself; the program's own are left alone."""
    for name, text in {
        "mine.py": "import parts, deep.inner, installed_there, random\n" + OPTIONAL,
        "parts.py": "def late():\n    import other\n    return other.NUMBER\n",
        "other.py": "NUMBER = 3\n",
        "deep/__init__.py": "",
        "deep/inner.py": "",
        "random.py": "raise ValueError('Python has its own')\n",
        "environment/installed_there.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "environment")
    load_class(tmp_path / "mine.py", "Layer")
    found = [str(file.relative_to(tmp_path)) for file in imported_files(tmp_path / "mine.py")]
    assert found == ["deep/__init__.py", "deep/inner.py", "parts.py"]
    # What runs later imports from there, too.
    assert sys.modules["parts"].late() == 3
    environment, parts = sys.modules["installed_there"], sys.modules["parts"]
    own = types.ModuleType("own_of_program")
    own.__file__ = str(tmp_path / "own_of_program.py")
    monkeypatch.setitem(sys.modules, "own_of_program", own)
    load_class(tmp_path / "mine.py", "Layer")
    assert sys.modules["installed_there"] is environment
    assert sys.modules["own_of_program"] is own
    assert sys.modules["parts"] is not parts
    assert all(type(each) is str for each in sys.path)
