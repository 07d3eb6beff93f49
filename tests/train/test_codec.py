from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque

import pytest
import torch

from sagann.errors import CheckpointError
from sagann.train.codec import Decoder, encode


def there_and_back(value):
    tensors = {}
    text = json.dumps(encode(value, tensors, name="state"), allow_nan=False)
    decoder = Decoder(tensors)
    back = decoder.decode(json.loads(text), name="state")
    decoder.require_all_taken()
    return back


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1,
        1e-300,
        math.inf,
        -math.inf,
        "text",
        [1, [2.5, None]],
        (1, (2, [3])),
        {1, 2},
        {"a": {"b": 1}},
        {0: "zero", 1: {"x": (1,)}},
        {"$tensor": "not a reference"},
        {("a", 1): 2},
        Counter({5: 1, 3: 2}),
        OrderedDict(b=1, a=2),
        deque([1, 2]),
    ],
)
def test_values_and_their_types_come_back(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_a_float_keeps_every_bit():
    assert there_and_back(0.1 + 0.2).hex() == (0.1 + 0.2).hex()
    assert math.isnan(there_and_back(math.nan))


def test_a_default_factory_is_not_kept():
    assert there_and_back(defaultdict(list, {1: [2]})) == {1: [2]}


def test_tensors_are_copied_with_their_bits():
    tensor = torch.tensor([[1.0, -0.0], [math.nan, math.inf]]).T
    tensors = {}
    encoded = encode({0: [tensor, tensor]}, tensors, name="s")
    assert sorted(tensors) == ["s.0.0", "s.0.1"]
    assert all(copy.is_contiguous() and copy.data_ptr() != tensor.data_ptr() for copy in tensors.values())
    back = Decoder(tensors).decode(encoded, name="s")[0][1]
    assert torch.equal(back.view(torch.int32), tensor.contiguous().view(torch.int32))


def test_keys_that_look_alike_do_not_collide():
    value = {1: torch.tensor([1.0]), "1": torch.tensor([2.0])}
    assert {key: float(tensor) for key, tensor in there_and_back(value).items()} == {1: 1.0, "1": 2.0}


@pytest.mark.parametrize("value", [lambda: 0, object(), {"f": print}, [1 + 2j]])
def test_what_is_no_plain_value_is_refused_by_name(value):
    with pytest.raises(CheckpointError, match="training state cannot be saved") as caught:
        there_and_back(value)
    assert caught.value.where.startswith("state")


@pytest.mark.parametrize(
    "around",
    [lambda value: [value], lambda value: (value,), lambda value: {"a": value}, lambda value: {1: value}],
)
def test_what_a_reader_would_refuse_as_nested_too_deeply_is_not_written(around):
    def write(levels):
        value = 0.5
        for _ in range(levels):
            value = around(value)
        return json.dumps({"content": {"state": {"state": encode(value, {}, name="state")}}})

    with pytest.raises(CheckpointError, match="nested in more than 30 containers"):
        write(31)
    for levels in range(31):
        json.loads(write(levels))


def test_a_value_that_holds_itself_is_refused():
    value = {}
    value["a"] = [value]
    with pytest.raises(CheckpointError, match=r"nested in more than 30 containers \(in state\.a\.0"):
        there_and_back(value)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"$tensor": "s.b"}, "s is tensor 's.b', expected tensor 's'"),
        ({"$tensor": ["s"]}, r"s is tensor \['s'\], expected"),
        ([{"$tensor": "s.0"}], "s.0 is tensor 's.0', expected tensor 's.0'"),
        ({"$pickle": "c"}, "s is .* no value of a checkpoint"),
        ({"$float": "1.5"}, "s is .* no value of a checkpoint"),
        ({"$float": ["nan"]}, "s is .* no value of a checkpoint"),
        ({"$tuple": {"a": 1}}, "s is .* no value of a checkpoint"),
        ({"$tuple": [], "b": 1}, "s has keys beside '.tuple'"),
        ({"$dict": [[1, 2], [1, 3]]}, "s has keys that are equal"),
        ({"$dict": [[1, 2, 3]]}, r"s.key0 is \[1, 2, 3\], expected a key and a value"),
        ({"$dict": [[[1], 2]]}, "s: unhashable type"),
        ({"$set": [1, 1]}, "s has keys that are equal"),
        ({"a": [1.0, math.nan]}, "s.a.1 is nan"),
    ],
)
def test_what_was_never_written_is_refused_by_name(written, problem):
    with pytest.raises(ValueError, match=problem):
        Decoder({"s": torch.zeros(1)}).decode(written, name="s")


def test_a_tensor_is_taken_once_and_by_its_own_entry():
    decoder = Decoder({"s": torch.zeros(1), "t": torch.ones(1)})
    decoder.decode({"$tensor": "s"}, name="s")
    with pytest.raises(ValueError, match="tensor 't' belongs to no entry"):
        decoder.require_all_taken()
    with pytest.raises(ValueError, match="s' is tensor 's', expected tensor 's''"):
        decoder.decode({"$tensor": "s"}, name="s")
