"""The public surface is frozen: a change here is a change for every user."""

import subprocess
import sys
from pathlib import Path

import sagann

PUBLIC = {
    "CheckpointError",
    "DatasetError",
    "Edge",
    "GNN",
    "Graph",
    "GraphBatches",
    "InputError",
    "LayerError",
    "MiniBatches",
    "ModelConfig",
    "SagaLayer",
    "SagannError",
    "Topology",
    "TrainConfig",
    "Trainer",
    "__version__",
    "build_model",
    "load_dataset",
    "load_graph",
    "load_run",
    "open_graph",
    "save_graph",
    "stream",
    "typed_linear",
}


def test_public_names_are_these_and_exist() -> None:
    assert set(sagann.__all__) == PUBLIC
    assert len(PUBLIC) <= 40
    for name in PUBLIC:
        assert getattr(sagann, name) is not None
    assert set(dir(sagann)) >= PUBLIC


def test_modules_are_there_and_imported_when_they_are_used() -> None:
    code = (
        "import sys, sagann; before = 'sagann.interop' in sys.modules or 'sagann.nn' in sys.modules; "
        "print(before, sagann.interop.from_pyg.__name__, sagann.nn.GCN.__name__, set(sagann._MODULES) <= set(dir(sagann)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False from_pyg GCN True\n"


def test_type_checkers_may_read_the_annotations() -> None:
    assert (Path(sagann.__file__).parent / "py.typed").is_file()


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(sagann, "Sagalayer")


def test_import_starts_nothing_and_is_fast() -> None:
    # Best of three, because other work on the machine only ever adds time.
    code = (
        "import torch, time, threading; t = time.perf_counter(); import sagann; "
        "print(time.perf_counter() - t, threading.active_count())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    seconds, threads = min((float(run.stdout.split()[0]), int(run.stdout.split()[1])) for run in runs)
    assert seconds <= 0.3
    assert threads == 1


def test_the_core_imports_no_slow_package_before_it_is_used() -> None:
    code = (
        "import sys, sagann; sagann.SagaLayer; sagann.Graph; sagann.GNN; "
        "print([name for name in ('numba', 'pyarrow', 'rich', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
