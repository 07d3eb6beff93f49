"""What the tests of the command line share: a way to run it in this process, and small datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sagann.graph import random_split, sbm_graph
from sagann.storage import save_graph
from tests.cli.warm import Warm
from tests.plain import no_kernels_are_generated as no_kernels_are_generated


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run a command in this process, as the program does."""
    # Imported here, so that collecting tests stays quick.
    from sagann.cli.main import main

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder: 120 vertices, 3 classes, 6 features, splits."""
    graph = sbm_graph(
        120, num_classes=3, average_degree=6, homophily=0.9, num_features=6, feature_noise=0.3, seed=1
    )
    path = tmp_path_factory.mktemp("data") / "blocks"
    save_graph(random_split(graph, seed=1), path)
    return path


@pytest.fixture(scope="package")
def trained(blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on ``blocks``."""
    from sagann.cli.main import main

    path = tmp_path_factory.mktemp("runs") / "trained"
    arguments = ["train", "--data", str(blocks), "--hidden", "8", "--epochs", "30", "--out", str(path), "--quiet"]
    assert main(arguments) == 0
    return path


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts the program in processes that import nothing: for tests of what is not its start."""
    process = Warm()
    yield process
    process.close()
