from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sagann.errors import CheckpointError
from sagann.train.atomic import digest
from sagann.train.checkpoint import Checkpoint, CheckpointFolder, Position


def checkpoint(epoch=10, batch=0):
    return Checkpoint(
        position=Position(epoch, batch),
        state={"lr": 0.1, "best": None, "weights": {"w": torch.arange(4.0), "n": torch.tensor(3)}},
    )


def test_written_and_read_back(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=2)
    path = folder.write(checkpoint())
    assert path == tmp_path / "checkpoints" / "epoch-000010"
    assert sorted(file.name for file in path.iterdir()) == ["state.json", "state.safetensors"]
    back = folder.read(Position(10))
    weights = back.state["weights"]
    assert {**back.state, "weights": None} == {"lr": 0.1, "best": None, "weights": None}
    assert torch.equal(weights["w"], torch.arange(4.0))
    assert weights["n"].shape == ()


def test_what_was_read_outlives_the_file(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(1))
    weights = folder.read(Position(1)).state["weights"]
    folder.write(checkpoint(2))
    assert folder.positions() == [Position(2)]
    assert torch.equal(weights["w"], torch.arange(4.0))


def test_the_newest_are_kept_in_the_order_of_epochs(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for epoch in (8, 9, 10, 1_000_000):
        folder.write(checkpoint(epoch))
    assert folder.positions() == [Position(1_000_000), Position(10)]


def test_positions_within_an_epoch_lie_between_those_of_its_ends(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for epoch, batch in ((3, 0), (3, 9), (3, 10), (4, 0)):
        path = folder.write(checkpoint(epoch, batch))
        assert folder.read(Position(epoch, batch)).position == Position(epoch, batch)
        assert path.name == ("epoch-000003-batch-000009" if batch == 9 else path.name)
    assert folder.positions() == [Position(4), Position(3, 10), Position(3, 9)]
    # What lies behind the newest position counts as damaged.
    folder.write(checkpoint(3, 4))
    assert folder.positions() == [Position(4), Position(3, 10), Position(3, 9), Position(3, 4)]
    (tmp_path / "epoch-000003-batch-000009").rename(tmp_path / "epoch-000003-batch-000011")
    with pytest.raises(CheckpointError, match=r"state\.json is of batch 9, the folder's name says 11"):
        folder.read(Position(3, 11))


def test_what_a_killed_process_left_is_no_checkpoint_and_is_removed(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=5)
    folder.write(checkpoint(1))
    half = tmp_path / ".tmp-epoch-000002"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    assert folder.positions() == [Position(1)]
    folder.write(checkpoint(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000001", "epoch-000002"]


@pytest.mark.parametrize("at", ["state.json", "state.safetensors"])
def test_one_that_goes_while_it_is_read_is_no_damage(tmp_path, monkeypatch, at):
    """A process that trains writes a newer one, and removes it."""
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(1))

    read_bytes = Path.read_bytes

    def go_on(path):
        if (path.parent.name, path.name) == ("epoch-000001", at):
            folder.write(checkpoint(2))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", go_on)
    assert folder.newest(on_damaged=pytest.fail).position == Position(2)


def test_a_full_disk_gets_its_room_back(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(1))

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("sagann.train.checkpoint.write_synced", full)
    with pytest.raises(CheckpointError, match="the run folder cannot be written: No space left on device"):
        folder.write(checkpoint(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["epoch-000001"]


def test_a_damaged_one_is_replaced(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=5)
    (folder.write(checkpoint()) / "state.json").write_text("{}")
    folder.write(checkpoint())
    assert folder.read(Position(10)).position == Position(10)


def damage(path, name, change):
    file = path / name
    content = file.read_bytes()
    file.write_bytes(change(content))


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.99])
def test_every_flipped_bit_is_noticed(tmp_path, name, at):
    folder = CheckpointFolder(tmp_path, keep=2)
    path = folder.write(checkpoint())

    def flip(content):
        position = int(at * len(content))
        return content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]

    damage(path, name, flip)
    with pytest.raises(CheckpointError, match="checkpoint is damaged"):
        folder.read(Position(10))


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_every_truncation_is_noticed(tmp_path, name):
    folder = CheckpointFolder(tmp_path, keep=2)
    path = folder.write(checkpoint())
    size = (path / name).stat().st_size
    for length in (size - 1, size // 2, 1, 0):
        damage(path, name, lambda content, length=length: content[:length])
        with pytest.raises(CheckpointError, match="checkpoint is damaged"):
            folder.read(Position(10))


def test_another_format_is_named(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    damage(
        folder.write(checkpoint()), "state.json", lambda content: content.replace(b'"format": 1', b'"format": 2')
    )
    with pytest.raises(CheckpointError, match=r"format 2 in state\.json, expected 1"):
        folder.read(Position(10))


def test_newest_passes_damaged_ones_over_and_tells(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=5)
    assert folder.newest(on_damaged=pytest.fail) is None
    for epoch in (1, 2, 3):
        folder.write(checkpoint(epoch))
    damage(tmp_path / "epoch-000003", "state.safetensors", lambda content: content[:-1])
    told = []
    newest = folder.newest(on_damaged=told.append)
    assert newest is not None
    assert newest.position == Position(2)
    assert len(told) == 1
    assert "epoch-000003" in told[0]


def test_one_that_is_not_as_required_is_passed_over(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=5)
    for epoch in (1, 2):
        folder.write(checkpoint(epoch))

    def require(found):
        if found.position > Position(1):
            raise ValueError("weights.w is 3, expected 4")

    told = []
    assert folder.newest(on_damaged=told.append, require=require).position == Position(1)
    assert ["checkpoint is damaged: weights.w is 3, expected 4 (in " in text for text in told] == [True]


def test_an_error_of_ours_is_no_damage(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=5)
    folder.write(checkpoint())

    def require(found):
        raise CheckpointError("another run", value="v", where="w", fix="f")

    with pytest.raises(CheckpointError, match="another run"):
        folder.newest(on_damaged=pytest.fail, require=require)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda content: content.pop("epoch"),
            "the content of state.json is not epoch, batch, state and tensors_checksum",
        ),
        (lambda content: content.update(more=1), "the content of state.json is not epoch"),
        (lambda content: content.update(epoch=True), "state.json is of epoch True, the folder's name says 1"),
        (lambda content: content.update(batch=3), "state.json is of batch 3, the folder's name says 0"),
        (lambda content: content.update(batch=False), "state.json is of batch False, the folder's name says 0"),
        (lambda content: content.update(state=[]), "the state in state.json is not an object"),
        (lambda content: content.update(tensors_checksum="0"), "state.safetensors does not match its checksum"),
        (lambda content: content["state"].pop("weights"), "tensor 'weights.n' belongs to no entry"),
        (lambda content: content["state"].update(lr={"$pickle": ""}), "lr is .* no value of a checkpoint"),
    ],
)
def test_wrong_content_with_a_right_checksum_is_damage(tmp_path, change, problem):
    folder = CheckpointFolder(tmp_path, keep=2)
    file = folder.write(checkpoint(1)) / "state.json"
    document = json.loads(file.read_text())
    change(document["content"])
    document["checksum"] = digest(json.dumps(document["content"]).encode())
    file.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=f"checkpoint is damaged: {problem}"):
        folder.read(Position(1))
