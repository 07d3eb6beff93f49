from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.errors import CheckpointError
from sagann.train.checkpoint import CheckpointFolder, Position


def checkpoint(epoch=10, batch=0, **state):
    state = state or {"lr": 0.1, "best": None, "weights": {"w": torch.arange(4.0), "n": torch.tensor(3)}}
    return {"epoch": epoch, "batch": batch, **state}


def there_and_back(tmp_path, value):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(value=value))
    return folder.read(Position(10))["value"]


@pytest.mark.parametrize(
    "value",
    [
        -math.inf,
        [1, (2, [3, {4}])],
        {0: "zero", ("a", 1): {"x": 2**70}},
        Counter({5: 1, 3: 2}),
        OrderedDict(b=1, a=2),
    ],
)
def test_plain_values_and_their_types_come_back(tmp_path, value):
    back = there_and_back(tmp_path, value)
    assert back == value
    assert type(back) is type(value)


def test_tensors_keep_their_bits_and_leave_what_lies_behind_them(tmp_path):
    tensor = torch.tensor([[1.0, -0.0], [math.nan, math.inf]])
    back = there_and_back(tmp_path, [tensor.T, torch.nn.Parameter(torch.zeros(1000, 1000)[:1, :2])])
    assert torch.equal(back[0].view(torch.int32), tensor.T.contiguous().view(torch.int32))
    assert type(back[1]) is torch.Tensor
    assert (tmp_path / "epoch-000010.pt").stat().st_size < 10_000


def holds_itself():
    value = {}
    value["a"] = [value]
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"f": [1, print]}, r"a builtins\.builtin_function_or_method \(in value\.f\.1\)"),
        (object(), r"a builtins\.object \(in value\)"),
        (deque([1]), r"a collections\.deque \(in value\)"),
        (np.zeros(2), r"a numpy\.ndarray \(in value\)"),
        (holds_itself(), "containers that lie in each other too deeply"),
    ],
)
def test_what_is_no_plain_value_is_refused_by_name(tmp_path, value, named):
    with pytest.raises(CheckpointError, match=rf"training state cannot be saved: {named}"):
        there_and_back(tmp_path, value)
    assert not list(tmp_path.iterdir())


def test_a_class_is_not_made_even_if_others_allow_it(tmp_path):
    path = CheckpointFolder(tmp_path, keep=1).write(checkpoint())
    torch.save({"format": 2, "epoch": 10, "batch": 0, "value": deque([1])}, path)
    with (
        torch.serialization.safe_globals([deque]),
        pytest.raises(CheckpointError, match=r"checkpoint is damaged: .*collections\.deque"),
    ):
        CheckpointFolder(tmp_path, keep=1).read(Position(10))


def test_positions_within_an_epoch_lie_between_those_of_its_ends(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for epoch, batch in ((3, 0), (3, 9), (3, 10), (4, 0)):
        path = folder.write(checkpoint(epoch, batch))
        assert Position.of(folder.read(Position(epoch, batch))) == Position(epoch, batch)
        assert path.name == ("epoch-000003-batch-000009.pt" if batch == 9 else path.name)
    assert folder.positions() == [Position(4), Position(3, 10), Position(3, 9)]
    # What lies behind the newest position counts as damaged.
    folder.write(checkpoint(3, 4))
    assert folder.positions() == [Position(4), Position(3, 10), Position(3, 9), Position(3, 4)]
    (tmp_path / "epoch-000003-batch-000009.pt").rename(tmp_path / "epoch-000003-batch-000011.pt")
    with pytest.raises(CheckpointError, match=r"it is of batch 9 of epoch 4, its name says batch 11 of epoch 4"):
        folder.read(Position(3, 11))


def test_one_that_goes_while_it_is_read_is_no_damage(tmp_path, monkeypatch):
    """A process that trains writes a newer one, and removes it."""
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(1))

    def go_on(path, *mode):
        if path.name == "epoch-000001.pt":
            folder.write(checkpoint(2))
        return opened(path, *mode)

    opened = Path.open
    monkeypatch.setattr(Path, "open", go_on)
    assert folder.newest(on_damaged=pytest.fail)["epoch"] == 2


def test_a_full_disk_gets_its_room_back(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(1))

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="the run folder cannot be written: No space left on device"):
        folder.write(checkpoint(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["epoch-000001.pt"]


def test_another_format_is_named(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    torch.save({"format": 9}, tmp_path / "epoch-000010.pt")
    with pytest.raises(CheckpointError, match="checkpoint is damaged: format 9, expected 3"):
        folder.read(Position(10))
    torch.save(torch.ones(2), tmp_path / "epoch-000010.pt")
    with pytest.raises(CheckpointError, match="checkpoint is damaged: format None, expected 3"):
        folder.read(Position(10))
    torch.save({"format": 3}, tmp_path / "epoch-000010.pt")
    with pytest.raises(CheckpointError, match="checkpoint is damaged: KeyError: 'epoch'"):
        folder.read(Position(10))
