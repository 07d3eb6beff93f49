import pytest

from sagann.torchrun import is_worker


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False),
        ({"WORLD_SIZE": "2"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, True),
    ],
)
def test_a_worker_has_a_rank_among_several(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_worker() is expected
