"""Valid datasets, damaged in any way: refused with an error in four parts, or read as they were."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.storage import (
    ImportOptions,
    check_dataset,
    import_edge_list,
    import_npz,
    open_graph,
    read_npz,
    save_graph,
)
from sagann.storage.manifest import MANIFEST_FILE
from tests.storage.conftest import assert_same_graph, make_graph


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A function that flips, cuts, adds, swaps or removes bytes at relative positions."""
    kind = draw(st.sampled_from(["flip", "cut", "append", "insert", "delete", "zero", "swap", "replace"]))
    position, length = draw(st.floats(0, 1)), draw(st.integers(1, 64))
    junk, bit = draw(st.binary(min_size=1, max_size=32)), draw(st.integers(0, 7))

    def apply(data: bytes) -> bytes:
        at = min(len(data) - 1, int(position * len(data))) if data else 0
        head, tail = data[:at], data[at:]
        if kind == "flip":
            return head + bytes([tail[0] ^ (1 << bit)]) + tail[1:] if tail else data
        return {
            "cut": head,
            "append": data + junk,
            "insert": head + junk + tail,
            "delete": head + tail[length:],
            "zero": head + bytes(len(tail[:length])) + tail[length:],
            "swap": tail + head,
            "replace": junk,
        }[kind]

    return apply


def refused_in_four_parts(action: Callable[[], object]) -> bool:
    """Whether an action was refused; any exception that is not ours passes through and fails the test."""
    try:
        action()
    except InputError as error:
        refusal = error
    else:
        return False
    assert all((refusal.what, refusal.value, refusal.where, refusal.fix))
    return True


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("valid")
    for layout in ("dense", "csr"):
        save_graph(make_graph(features=layout), folder / layout)
    graph = make_graph()
    assert graph.labels is not None
    arrays = {
        "edge_index": np.stack([graph.topology.indices.numpy(), graph.topology.edge_dst().numpy()]),
        "labels": graph.labels.numpy(),
        "features": np.eye(7, dtype=np.float32),
        "train_mask": graph.splits["train"].numpy(),
        "edge_type": graph.topology.edge_data["type"].numpy(),
    }
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    (folder / "edges.csv").write_text("from,to,w\n" + "".join(f"{i},{i * 3 % 7},{i}.5\n" for i in range(7)))
    return {path.name: path for path in folder.iterdir()}


@settings(max_examples=250, deadline=None)
@given(data=st.data(), spoil=damage(), layout=st.sampled_from(["dense", "csr"]))
def test_damaged_folders(
    valid: dict[str, Path], data: st.DataObject, spoil: Callable[[bytes], bytes], layout: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "g")
        shutil.copytree(valid[layout], folder)
        files = sorted(path.name for path in folder.iterdir())
        victim = folder / data.draw(st.sampled_from([*files, MANIFEST_FILE]))
        action = data.draw(st.sampled_from(["spoil", "spoil", "spoil", "remove", "exchange", "folder"]))
        before = victim.read_bytes()
        if action == "spoil":
            victim.write_bytes(spoil(before))
        elif action == "exchange":
            other = folder / data.draw(st.sampled_from(files))
            victim.write_bytes(other.read_bytes())
            other.write_bytes(before)
        else:
            victim.unlink()
            if action == "folder":
                victim.mkdir()
        if not refused_in_four_parts(lambda: check_dataset(folder)):
            assert_same_graph(open_graph(folder), make_graph(features=layout))


@settings(max_examples=150, deadline=None)
@given(spoil=damage(), name=st.sampled_from(["stored.npz", "packed.npz"]))
def test_damaged_archives(valid: dict[str, Path], spoil: Callable[[bytes], bytes], name: str) -> None:
    expected = read_npz(valid[name])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(spoil(valid[name].read_bytes()))
        graphs: list[Graph] = []
        refused = refused_in_four_parts(lambda: graphs.append(read_npz(path)))
        out = Path(folder, "out")
        refused_import = refused_in_four_parts(lambda: import_npz(path, out))
        assert refused == refused_import
        assert sorted(entry.name for entry in Path(folder).iterdir()) == sorted(
            [name] + [] * refused + ["out"] * (not refused)
        )
        if not refused:
            # Names of arrays are not protected by checksums: an optional one may be lost, values may not change.
            graph = graphs[0]
            assert graph.num_edges == expected.num_edges
            assert graph.topology.indices.tolist() == expected.topology.indices.tolist()
            check_dataset(out)
            assert open_graph(out).topology.indices.tolist() == expected.topology.indices.tolist()


@settings(max_examples=150, deadline=None)
@given(spoil=damage())
def test_damaged_edge_lists(valid: dict[str, Path], spoil: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "edges.csv")
        path.write_bytes(spoil(valid["edges.csv"].read_bytes()))
        out = Path(folder, "out")
        if not refused_in_four_parts(lambda: import_edge_list(path, out, options=ImportOptions(num_vertices=7))):
            # Text without checksums may be damaged into other text; what is imported must still be a graph.
            check_dataset(out)
            assert open_graph(out).num_vertices == 7
