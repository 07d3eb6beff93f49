"""Mistakes on the command line: exit code 2, a message that names them, no result, and nothing written or changed."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sagann.storage import save_graph
from tests.cli.conftest import Invoke
from tests.train.graphs_of import rings_and_stars

_RMAT, _SBM = "data generate rmat new --vertices 5 --edges 5", "data generate sbm new --vertices 50"
_TRAIN, _RINGS = "train BLOCKS --epochs 2 --out new", "train RINGS --out new"
_SIZES = "train SIZES --model gin --batch-size 8 --out new --targets="
_PLAN, _SAMPLED = "plan demo --model gcn", "plan demo --model sage --sample 10,5"
_TRAINERS = "plan demo --model sage --sample 25,10 --batch-size 40 --devices host,accelerator"
_SEVERAL = f"{_PLAN} --memory 3MiB --devices"
_U250 = f"{_TRAINERS} --machine epyc-7763-u250"
_WORKERS = "evaluate RUN --workers 2"
_TEAM = "train BLOCKS --device cpu --out new --workers"

MISTAKES = [
    # Usage.
    ("train --hidden", "requires an argument"),
    ("predict --run x", "Missing option '--out'"),
    ("data info", "Missing argument"),
    ("doctor please", "unexpected extra argument"),
    # The nearest name is offered, also of another program's.
    ("trian", "Did you mean 'train'?"),
    ("train --epohcs 3", "Possible options: --epochs)"),
    ("train --early-stopping 10", "Possible options: --patience)"),
    ("train --symmetrise", "Possible options: --undirected)"),
    ("train demo --model gnc", "Did you mean 'gcn'?"),
    ("train demo --encoder Linear", "Did you mean 'linear'?"),
    ("train demo --engine compield", "Did you mean 'compiled'?"),
    ("train demo --optimizer adam", "Did you mean 'Adam'?"),
    ("train dmeo", "Did you mean 'demo'?"),
    ("train RINGZ", "Did you mean 'RINGS'?"),
    ("train n.npy", "Did you mean 'n.npz'?"),
    ("plan demo --show step", "Did you mean 'steps'?"),
    ("data import a b --undirected", "Possible options: --symmetrise)"),
    ("data import roads.csv new --format paquet", "Did you mean 'parquet'?"),
    ("data import roads.csv new --weight kmm", "Did you mean 'km'?"),
    ("data reorder demo new --by mettis", "Did you mean 'metis'?"),
    ("data reorder a b --order degree", "Possible options: --by)"),
    ("data generate rmat a --nodes 9", "Possible options: --vertices)"),
    ("data generate rmat x --vertices -1 --edges 2", "--vertices"),
    ("data generate rmat x --vertices many --edges 2", "--vertices"),
    # Datasets that are generated.
    ("data generate rmat new --vertices 0 --edges 5", "edges need vertices"),
    (f"data generate rmat new --vertices 5 --edges {10**30}", "Invalid value for '--edges'"),
    (f"data generate rmat new --vertices 5 --edges {10**12}", "disk is too small"),
    (f"{_RMAT} --memory 1kB", "memory_bytes is 1000, expected"),
    ("data generate rmat no/where/new --vertices 5 --edges 5", "no/where"),
    ("data generate sbm BLOCKS --vertices 30", "a dataset stands there already"),
    (f"{_SBM} --degree nan", "parameter of the block model out of range"),
    ("data generate sbm new --vertices 1000000000 --degree 4", "the work does not fit memory"),
    (f"{_SBM} --split half", "split is not understood"),
    (f"{_SBM} --split random:0,0", "the training split is empty"),
    (f"{_SBM} --classes {10**20}", "Invalid value for '--classes'"),
    (f"{_SBM} --seed {10**40}", "seed"),
    # Datasets that are imported.
    ("data import nowhere.csv new", "source not found"),
    ("data import roads.csv new --format excel", "format is unknown: 'excel'"),
    ("data import roads.csv new --src zz", "zz"),
    ("data import roads.csv new --weight from --num-vertices 1", "roads.csv"),
    ("data import roads.csv new --split-scheme time", "option is for another format: --split-scheme"),
    ("data import roads.csv new --separator ab", "must be a 1-character string"),
    ("data import roads.csv new --num-vertices -4", "num_vertices is -4, expected an integer from 0"),
    ("data import roads.csv no/new", "no"),
    ("data import roads.csv roads.csv", "roads.csv"),
    ("data import n.npz new --targets t.npy", "option is for another format: --targets with format npz"),
    ("data import n.npz new --src a", "option is for another format: --src with format npz"),
    ("data import bad.csv new", "bad.csv, row 3"),
    ("data import bad.csv new --format parquet", "bad.csv"),
    ("data import bad.csv new --format npz", "bad.csv"),
    # Datasets that are looked at.
    ("data info nowhere", "graph not found"),
    ("data info ''", "hint: "),
    ("data info .", "hint: "),
    ("data check nowhere", "graph not found"),
    (f"data check {'x' * 300}", "hint: "),
    ("data check 'a\0b'", "hint: "),
    ("data reorder BLOCKS new --by degree --score rpr", "only the order by score has a score: --score rpr with --by degree"),
    ("data reorder BLOCKS new --by score --score heat", "unknown score: 'heat', expected one of degree, rpr, wrpr, vip"),
    # Machines.
    ("machine --device cuda:99", "no such device: 'cuda:99'"),
    ("machine --disk none --out new.toml", "the disk cannot be measured: No such file or directory (in 'none')"),
    # Values that are none.
    ("train features.npz --out new", "feature is not finite: nan in column 2"),
    ("train labels.npz --out new", "label out of range: -7, but"),
    ("train train_mask.npz --out new", "the training split is empty"),
    # Files that are none of ours.
    ("train photo.npz", "photo.npz"),
    ("train graph.pt", "graph.pt"),
    ("train roads.csv", "roads.csv"),
    ("train text", "text"),
    ("train empty", "empty"),
    ("train binary", "binary"),
    # Training.
    (f"{_TRAIN} --model perceptron", "unknown model: 'perceptron'"),
    (f"{_TRAIN} --device cuda:7", "no such device"),
    (f"{_TRAIN} --lr nan", "lr is nan"),
    (f"{_TRAIN} --monitor test/accuracy", "monitor is 'test/accuracy'"),
    (f"{_TRAIN} --scheduler StepLR --scheduler-option step_size=0", "torch refuses the scheduler: StepLR"),
    (f"{_TRAIN} --loss mse", "the loss does not fit the task: 'mse' is for regression, the task is classification"),
    (f"{_TRAIN} --task regression", "the task does not fit the graph: task 'regression'"),
    (f"{_TRAIN} --hidden 2000000000", "the work does not fit memory"),
    (f"{_TRAIN} --split thirds", "split is not understood"),
    (f"{_TRAIN} --split edges:0.85,0.05", "split is not understood"),
    ("train BLOCKS --out text", "the folder holds something else than a run: 1 files"),
    ("train BLOCKS --out text --overwrite", "the folder holds something else than a run: 1 files"),
    ("train BLOCKS --out roads.csv", "the run folder is a file"),
    ("train BLOCKS --out BLOCKS/run", "cannot be saved among the files of a dataset or of another run: they belong to"),
    ("train BLOCKS --out RUN/checkpoints/run", "cannot be saved among the files of a dataset or of another run"),
    ("train demo --data demo", "data is given twice: 'demo' and --data 'demo'"),
    ("train --out new", "no data: neither --data nor"),
    ("plan --workers 2", "of a --config file (in the command line)"),
    ("train demo gcn", "unexpected extra argument"),
    ("train --resume", "nothing to resume: no --out"),
    ("train --resume --out nowhere", "nothing to resume: there is no config.toml"),
    ("train --resume --overwrite --out nowhere", "cannot be continued and replaced"),
    # Several workers.
    (f"{_TEAM} 2 --sample 5,5 --balance cost", "balance is 'cost', sample is [5, 5]"),
    (f"{_TEAM} 2 --memory 2GiB --balance cost", "balance is 'cost', memory is '2GiB'"),
    (f"{_TEAM} 2 --memory 2GiB --profile", "profile is True, expected False"),
    (f"{_TEAM} 2 --worker-timeout 0", "worker_timeout is 0.0, expected seconds from 0.001 to 1e+06"),
    (f"{_TEAM} 2 --balance time", "balance is 'time', expected one of edges"),
    ("train demo --hidden 8 --memory 12MiB --device cuda:0,cuda:1 --workers 2 --out new", "workers have one each"),
    (f"{_TEAM} 0", "workers is 0, expected an integer from 1 to 8192"),
    # Whole graphs.
    (f"{_RINGS} --sample 5,5", "sample is (5, 5), expected None when whole graphs are learned"),
    (f"{_RINGS} --memory 1GiB", "memory is '1GiB', expected None when whole graphs are learned"),
    (f"{_RINGS} --split per-class:2,2", "split is not one of whole graphs: 'per-class:2,2'"),
    (f"{_RINGS} --targets 0", "there are no targets to choose from: the graph has labels of 2 classes of graphs"),
    (f"{_RINGS} --task regression", "the task does not fit the graph"),
    (f"{_RINGS} --pool softmax", "an accumulator that cannot pool: 'softmax'"),
    (f"{_RINGS} --pool mean,", "unknown accumulator"),
    ("plan RINGS --workers 2", "the task is graph-classification, and --workers plans"),
    (f"{_SIZES}2", "no such targets: [2]; there are 2"),
    (f"{_SIZES}0,0", "no such targets: [0, 0]; there are 2"),
    (f"{_SIZES}-1", "no such targets: [-1]; there"),
    (f"{_SIZES}{10**30}", "no such targets: [1000"),
    # Plans.
    (f"{_PLAN} --machine x", "or plan an epoch within a budget (--memory)"),
    (f"{_PLAN} --show steps", "or plan an epoch within a budget (--memory)"),
    (f"{_PLAN} --learned x", "--learned, and the plan is of the programs of layers"),
    (f"{_PLAN} --batch-size 64", "batch_size is 64, expected None when sample is not set"),
    (f"{_PLAN} --memory 20MiB --device cuda:99", "no such device: 'cuda:99'"),
    (f"{_TRAIN} --sample 5,5 --devices host,cuda:99", "no such device: 'cuda:99'; PyTorch sees 0 CUDA devices (in --devices)"),
    (f"{_TRAIN} --sample 5,5 --devices host", "at most once and not alone"),
    (f"{_PLAN} --memory 1kB", "are needed"),
    (f"{_PLAN} --memory 20MiB --picture new.jpg", "file type is unknown: '.jpg', expected .png (in --picture new.jpg)"),
    (f"{_PLAN} --memory 20MiB --picture no/new.png", "file cannot be written: there is no folder 'no'"),
    (f"{_SAMPLED} --picture x.png", "--picture, and the plan is of mini-batches (--sample)"),
    (f"{_SAMPLED} --show kernels", "or plan the programs of layers"),
    ("plan demo --model sage --sample 10", "wrong number of fanouts: 1, expected one for each of the model's 2 hops"),
    ("plan demo --model sage --sample 10,x", "sample is '10,x', expected a comma-separated list of integers"),
    (f"{_U250} --link-rate 1e9", "states the rates of its links: --link-rate, with --machine"),
    (f"{_TRAINERS} --link-rate -1", "--link-rate"),
    (f"{_TRAINERS} --machine nowhere.toml", "machine file cannot be read"),
    (f"{_TRAINERS} --machine p100x8", "machine lacks an accelerator: 'accelerator0', and there are none"),
    (f"{_U250} --memory 1GiB", "memory is '1GiB', expected None when devices is set"),
    (f"{_U250} --kernel scatter_pes", "sizes of kernels are not NAME=VALUE: 'scatter_pes' (in --kernel)"),
    (f"{_U250} --kernel macs=9", "kernels have no such size: 'macs' (in --kernel)"),
    (f"{_U250} --kernel scatter_pes=8,lanes=3", "array_columns is 128, expected 3 lanes times a power of 2"),
    (f"{_U250} --kernel array_weights=64", "kernel is too small: weights need"),
    (f"{_TRAINERS} --machine epyc-7763-a5000 --kernel lanes=8", "the machine has no hardware kernels: two AMD EPYC"),
    (f"{_TRAINERS} --kernel lanes=8", "hardware kernels are planned on a machine that is described: --kernel, without"),
    (f"{_TRAINERS}:fpga", "planned on a machine that is described: host,accelerator:fpga, without --machine"),
    ("plan demo --kernel lanes=8", "an option has no effect on this plan: --kernel"),
    (f"{_U250} --model gat", "the performance model does not know this model"),
    (f"{_U250} --layers 3", "fanouts do not fit the layers"),
    (f"{_U250} --batch-size 1", "fewer seeds than trainers"),
    ("plan demo --model sage --sample 25,10 --devices accelerator:8000", "have more cores than there are: 8000, and this process"),
    (f"{_SEVERAL} 9 --machine p100x8", "the machine has not so many devices: 9 of 8"),
    (f"{_SEVERAL} 2 --machine epyc-7763-a5000", "the machine has not so many devices: 2 of 0"),
    (f"{_SEVERAL} 2", "a number of devices is planned on a machine that is described, within a budget: 2"),
    (f"{_SAMPLED} --devices 2 --machine p100x8", "a number of devices is planned on a machine that is described"),
    (f"{_TRAINERS} --workers 2", "devices is 'host,accelerator', expected None when several workers train"),
    (f"{_PLAN} --workers 2 --memory 1GiB --balance cost", "vertices do not move between workers that stream"),
    (f"{_PLAN} --workers 2 --sample 5,5 --balance cost", "mini-batches are divided equally among workers"),
    (f"{_PLAN} --workers 2 --learned x", "not a run folder"),
    (f"{_PLAN} --balance cost", "nothing is divided without workers: --balance, and there is one process"),
    # Runs that are used.
    ("evaluate .", "not a run folder: run.json cannot be read"),
    ("evaluate", "no run: neither a run folder nor --run"),
    ("predict RUN --out new.txt", "file type is unknown: '.txt'"),
    ("predict RUN --out precious.npy", "a file stands there already: overwriting was not asked for"),
    ("predict RUN --out no/new.csv", "file cannot be written: there is no folder 'no' (in --out no/new.csv)"),
    ("predict RUN --out folder.npy", "file cannot be written: what stands there is not a file"),
    ("predict RUN --out BLOCKS/labels.npy", "file cannot be written among those of a dataset or a run"),
    ("embed RUN --out precious.npy", "a file stands there already: overwriting was not asked for"),
    ("evaluate RUN --memory 10B", "the memory budget cannot be met"),
    ("evaluate RUN --memory much", "size is not understood"),
    ("evaluate RUN --workers 0", "workers is 0, expected an integer from 1 to 8192"),
    ("evaluate RUN --balance cost", "nothing is divided without workers: --balance, and"),
    ("evaluate RUN --worker-timeout 9", "nothing is divided without workers: --worker-timeout, and"),
    ("evaluate nowhere --workers 2", "not a run folder"),
    (f"{_WORKERS} --balance time", "balance is 'time', expected one of edges"),
    (f"{_WORKERS} --balance cost", "the run has learned no cost model"),
]  # fmt: skip
"Command lines, and what their messages say."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command lines name."""
    path = tmp_path_factory.mktemp("mistakes")
    save_graph(rings_and_stars(), path / "RINGS")
    save_graph(replace(rings_and_stars(regression=True), graph_splits={}), path / "SIZES")
    (path / "roads.csv").write_text("from,to,km,kind\n0,1,2.5,0\n1,2,1.0,1\n2,2,0.5,1\n0,1,4.0,0\n")
    (path / "bad.csv").write_text("a,b\n0,1\n0,one\n")
    np.savez(path / "n.npz", edge_index=np.zeros((2, 1), dtype=np.int64))
    src = np.arange(12)
    ring = {"features": np.eye(12, 4), "labels": src % 2, "train_mask": src % 3 == 0}
    for name, at, value in (("features", (7, 2), np.nan), ("labels", 4, -7), ("train_mask", src, False)):
        changed = {key: array.copy() for key, array in ring.items()}
        changed[name][at] = value
        np.savez(path / f"{name}.npz", edge_index=[src, (src + 1) % 12], **changed)
    (path / "photo.npz").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    (path / "graph.pt").write_bytes(b"PK\x03\x04")
    for name, file, content in (
        ("text", "readme.txt", b"hello"),
        ("empty", "manifest.json", b"{}"),
        ("binary", "manifest.json", b"\xff\xff"),
    ):
        (path / name).mkdir()
        (path / name / file).write_bytes(content)
    (path / "precious.npy").write_text("precious")
    (path / "folder.npy").mkdir()
    return path


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=lambda value: value[:50].replace("\0", " "))
def test_a_mistake_is_named_and_nothing_is_done(
    line: str,
    message: str,
    invoke: Invoke,
    folder: Path,
    blocks: Path,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sagann.cli.launch.launch_workers", lambda *_, **__: pytest.fail("workers were started"))
    monkeypatch.chdir(folder)

    def files() -> dict[Path, float]:
        places = (folder, blocks, trained)
        found = (path for place in places for path in place.rglob("*"))
        return {path: path.stat().st_mtime if path.is_file() else 0.0 for path in found}

    before = files()
    outcome = invoke(*shlex.split(line.replace("BLOCKS", str(blocks)).replace("RUN", str(trained))))
    assert outcome.code == 2, outcome.err
    assert message in " ".join(outcome.err.split())
    # A message has a hint, or shows the usage; that an argument is missing is all that there is to say.
    shown = r"^Usage: |^Error: .+\n  hint: \S|^Error: Option '\S+' requires an argument"
    assert re.search(shown, outcome.err, re.MULTILINE), outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    assert files() == before
