from __future__ import annotations

import pytest

from sagann.byte_size import format_bytes, parse_bytes
from sagann.errors import InputError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 2**20),
        ("1000632 bytes", 1000632),
        ("256MiB", 2**28),
        ("1 gib", 2**30),
        ("2GB", 2 * 10**9),
        (" 0.5 KiB ", 512),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, where="--memory") == size


@pytest.mark.parametrize("text", ["", "-1", "1e9", "1XB", "1 2", "9" * 5000])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match=r"size is not understood: .* \(in --memory\)\. Write a number and a unit"):
        parse_bytes(text, where="--memory")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1048575", "1048575MiB"),
        ("1.5", "1.5MiB"),
        ("512 m", "512MiB"),
    ],
)
def test_a_small_number_without_a_unit_is_refused_and_the_size_that_is_offered_is_not(text: str, hint: str) -> None:
    with pytest.raises(InputError, match=rf"size is not understood: .*\. Write a number and a unit, as {hint}\.$"):
        parse_bytes(text, where="--memory")
    assert parse_bytes(hint, where="--memory") >= 2**20


@pytest.mark.parametrize("text", ["9" * 18 + "TiB"])
def test_sizes_beyond_64_bits(text: str) -> None:
    with pytest.raises(InputError, match=r"size is out of range: .* in bytes, expected an integer from 0 to 2\^63"):
        parse_bytes(text, where="--memory")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**40, "5.0 TiB"), (2**60, "1048576.0 TiB")],
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert format_bytes(count) == text
