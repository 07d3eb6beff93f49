"""Files that are cut or written to while a graph is in use."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sagann.errors import DatasetError, InputError
from sagann.storage import ImportOptions, import_edge_list, open_graph, save_graph
from sagann.storage.verify import check_graph
from sagann.storage.whole_files import map_source, require_whole_sources, whole_files, whole_sources
from tests.storage.conftest import make_graph


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_graph(make_graph(), tmp_path / "g")
    return tmp_path / "g"


def features_of(graph: object) -> Tensor:
    features = getattr(graph, "features", None)
    assert isinstance(features, Tensor)
    return features


def cut_message(folder: Path, name: str = "features") -> str:
    return f"array file has become shorter: .* .in {re.escape(str(folder / f'{name}.npy'))}"


def test_work_on_a_file_that_is_cut_ends_with_its_name(folder: Path) -> None:
    graph = open_graph(folder)

    def work() -> None:
        with whole_files(graph):
            os.truncate(folder / "features.npy", 0)
            assert features_of(graph).sum() == 0

    with pytest.raises(DatasetError, match=cut_message(folder)):
        work()


def test_a_cut_is_noticed_before_a_page_is_missed(folder: Path) -> None:
    graph = open_graph(folder)

    def work() -> None:
        with whole_files(graph) as require_whole:
            require_whole()
            os.truncate(folder / "features.npy", 5)
            with pytest.raises(DatasetError, match="5 bytes are left of 240"):
                require_whole()

    for _ in range(2):
        with pytest.raises(DatasetError, match=cut_message(folder)):
            work()


def test_lost_pages_are_the_reason_of_other_errors(folder: Path) -> None:
    graph = open_graph(folder)

    def work() -> None:
        with whole_files(graph):
            os.truncate(folder / "features.npy", 0)
            raise InputError("odd", value="0", where="the features", fix="None.")

    with pytest.raises(DatasetError, match=cut_message(folder)) as caught:
        work()
    assert isinstance(caught.value.__context__, InputError)


def test_a_file_that_grew_again_has_lost_its_pages(folder: Path) -> None:
    graph = open_graph(folder)
    size = (folder / "features.npy").stat().st_size

    def lose() -> None:
        with whole_files(graph):
            os.truncate(folder / "features.npy", 0)
            features_of(graph).sum()
            os.truncate(folder / "features.npy", size)

    for attempt in (lose, lambda: check_graph(graph)):
        with pytest.raises(DatasetError, match="pages of it could not be read"):
            attempt()


def test_lost_offsets_leave_empty_rows(folder: Path) -> None:
    graph = open_graph(folder)

    def work() -> None:
        with whole_files(graph):
            os.truncate(folder / "indptr.npy", 0)
            assert graph.topology.indptr.tolist() == [graph.num_edges] * 8

    with pytest.raises(DatasetError, match=cut_message(folder, "indptr")):
        work()


def test_a_file_that_is_written_to_is_compared_again(folder: Path) -> None:
    graph = open_graph(folder)
    path = folder / "labels.npy"

    def work() -> None:
        with whole_files(graph):
            with path.open("r+b") as file:
                file.seek(128)
                file.write(b"\1")
            os.utime(path, ns=(0, 0))

    with pytest.raises(DatasetError, match=r"array file is damaged.*labels\.npy"):
        work()


def test_other_changes_do_no_harm(folder: Path) -> None:
    graph, moved = open_graph(folder), folder.with_name("moved")
    with whole_files(graph):
        os.utime(folder / "labels.npy", ns=(0, 0))
    shutil.copytree(folder, moved)
    with whole_files(graph):
        # The old file lives on for those who have mapped it.
        os.truncate(moved / "features.npy", 0)
        (moved / "features.npy").replace(folder / "features.npy")
        (folder / "indices.npy").unlink()
        assert torch.equal(features_of(graph), features_of(make_graph()))


def test_graphs_of_other_files_are_not_looked_at(folder: Path, tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "other")
    other = open_graph(tmp_path / "other")
    with whole_files(open_graph(folder), make_graph()):
        os.truncate(tmp_path / "other" / "features.npy", 0)
    with pytest.raises(DatasetError, match="become shorter"), whole_files(other):
        pass


def test_a_graph_is_not_saved_from_a_file_that_is_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = open_graph(folder)
    monkeypatch.setattr("sagann.storage.dataset.manifest_of", lambda *_: os.truncate(folder / "features.npy", 0))
    monkeypatch.setattr("sagann.storage.dataset.write_manifest", lambda *_: None)
    with pytest.raises(DatasetError, match=cut_message(folder)):
        save_graph(graph, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_source_that_is_cut_while_it_is_imported_ends_the_import(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    np.save(tmp_path / "x.npy", np.ones((100_000, 64), np.float32))

    def cut(done: int, total: int | None, unit: str, stage: str) -> None:
        os.truncate(tmp_path / "x.npy", 128)

    def work() -> None:
        import_edge_list(
            tmp_path / "edges.csv",
            tmp_path / "out",
            features=tmp_path / "x.npy",
            options=ImportOptions(progress=cut),
        )

    with pytest.raises(DatasetError, match=r"has become shorter: 128 bytes are left of 25600128 .in .*x\.npy"):
        work()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "x.npy"]


def test_lost_pages_of_a_source_are_the_reason_of_what_follows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(4096))

    @whole_sources()
    def work(cuts: bool) -> float:
        with (tmp_path / "x.npy").open("rb") as file:
            file.seek(128)
            array = map_source(file, tmp_path / "x.npy", np.dtype("float64"), (4096,))
        require_whole_sources()
        if cuts:
            os.truncate(tmp_path / "x.npy", 128)
        total = float(array.sum())
        if total == 0:
            raise ValueError("the sum is 0")
        return total

    assert work(cuts=False) == 4096
    with pytest.raises(DatasetError, match="128 bytes are left of 32896"):
        work(cuts=True)
