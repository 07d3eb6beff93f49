"""Cora and CiteSeer: fetched from a server, checked, and read as PyG reads them."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import DatasetError, InputError
from sagann.interop import load_dataset, planetoid
from tests.interop.test_named import citations, planetoid as processed_by_pyg, write_raw
from tests.storage.conftest import assert_same_arrays

PARTS = tuple(planetoid.PUBLISHED["cora"])


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of files that a server publishes as Cora."""
    folder = tmp_path / "published"
    write_raw(folder, citations())
    publish(folder, monkeypatch)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(planetoid, "SOURCE", f"http://127.0.0.1:{server.server_address[1]}/")
        yield folder
        server.shutdown()
        thread.join()


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the files of a folder for the published ones."""
    digests = {part: hashlib.sha256((folder / f"ind.cora.{part}").read_bytes()).hexdigest() for part in PARTS}
    monkeypatch.setitem(planetoid.PUBLISHED, "cora", digests)


def test_a_dataset_that_is_missing_is_fetched_once(published: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="dataset not found"):
        load_dataset("cora", root=tmp_path, download=False)
    graph = load_dataset("cora", root=tmp_path)
    assert_same_arrays(graph, citations())
    assert graph.name == "Cora"
    # What is there is read where it lies.
    for path in published.iterdir():
        path.unlink()
    assert_same_arrays(load_dataset("cora", root=tmp_path), graph)
    with pytest.raises(InputError, match="split=0, for a dataset that has one split"):
        load_dataset("cora", root=tmp_path, split=0)


def test_a_fetch_that_was_cut_short_goes_on(published: Path, tmp_path: Path) -> None:
    moved = (published / "ind.cora.graph").rename(tmp_path / "moved")
    with pytest.raises(
        DatasetError,
        match=r"cannot be fetched: .*404.*\(in .*ind\.cora\.graph\)\. Connect .* put the file at .*Cora/raw/ind",
    ):
        load_dataset("cora", root=tmp_path)
    assert len(list((tmp_path / "Cora" / "raw").iterdir())) == PARTS.index("graph")
    moved.rename(published / "ind.cora.graph")
    (tmp_path / "Cora" / "raw" / "ind.cora.x").write_bytes(b"cut")
    planetoid.fetch_planetoid("cora", tmp_path / "Cora")
    assert_same_arrays(load_dataset("cora", root=tmp_path), citations())


def test_other_content_is_refused_and_never_unpickled(published: Path, tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "planted",)

    (published / "ind.cora.x").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(DatasetError, match=r"what came is not the published file: SHA-256 .*, expected "):
        load_dataset("cora", root=tmp_path)
    assert not (tmp_path / "Cora").exists()
    write_raw(tmp_path / "Cora" / "raw", citations())
    (tmp_path / "Cora" / "raw" / "ind.cora.allx").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(DatasetError, match="PyG has not processed the dataset yet"):
        load_dataset("cora", root=tmp_path)
    assert planetoid.read_planetoid(tmp_path / "Cora", "cora") is None
    assert not (tmp_path / "planted").exists()


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planetoid, "SOURCE", "http://127.0.0.1:9/")
    with pytest.raises(
        DatasetError, match=r"the dataset is not here, and cannot be fetched: .*refused.* Connect to the network"
    ):
        load_dataset("citeseer", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", [0, 2])
def test_raw_files_are_read_as_pyg_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    graph = citations()
    processed_by_pyg(tmp_path / "pyg", graph)
    write_raw(tmp_path / "ours" / "Cora" / "raw", graph, protocol=protocol)
    publish(tmp_path / "ours" / "Cora" / "raw", monkeypatch)
    ours, theirs = (load_dataset("cora", root=tmp_path / name) for name in ("ours", "pyg"))
    assert_same_arrays(ours, theirs)
    assert_same_arrays(theirs, graph)


def test_vertices_to_test_may_stand_in_any_order_and_some_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, graph = tmp_path / "Cora" / "raw", citations()
    write_raw(raw, graph)
    first, count = 640, 60
    order = np.random.default_rng(0).permutation(np.arange(first, first + count))
    # One id is not in the file, so that there is a vertex without features and label.
    ids = np.where(order == first + count - 1, first + count, order)
    (raw / "ind.cora.test.index").write_text("".join(f"{vertex}\n" for vertex in ids))
    publish(raw, monkeypatch)
    found = load_dataset("cora", root=tmp_path)
    missing = first + count - 1
    assert found.num_vertices == first + count + 1
    assert not found.splits["test"][missing]
    assert int(found.labels[missing]) == -1
    assert float(found.features[missing].abs().sum()) == 0
    # Row i of tx belongs to the i-th id of the file.
    torch.testing.assert_close(found.features[torch.from_numpy(ids)], graph.features[first:])
    assert torch.equal(found.labels[torch.from_numpy(ids)].long(), graph.labels[first:].long())


def test_an_array_as_python_2_has_written_it() -> None:
    content = (
        b"cnumpy.core.multiarray\n_reconstruct\np1\n(cnumpy\nndarray\np2\n(I0\ntp3\nS'b'\np4\ntp5\nRp6\n(I1\n(I3\ntp7\ncnumpy\ndtype\np8\n"
        b"(S'i4'\np9\nI0\nI1\ntp10\nRp11\n(I3\nS'<'\np12\nNNNI-1\nI-1\nI0\ntp13\nbI00\nS'\\x01\\x00\\x00\\x00\\xff\\x00\\x00\\x00\\x03\\x00\\x00\\x00'\np14\ntp15\nb."
    )
    assert planetoid._unpickled(content).tolist() == [1, 255, 3]
