import pytest

from sagann.errors import InputError
from sagann.torchrun import is_restarted, is_worker, num_workers, rank


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False),
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


def test_a_process_knows_whether_it_was_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert not is_restarted()
    for count, expected in (("0", False), ("1", True)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        assert is_restarted() is expected


@pytest.mark.parametrize("text", ["", "-1", "9" * 40])
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"])
def test_what_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    ask = {"RANK": rank, "WORLD_SIZE": num_workers, "TORCHELASTIC_RESTART_COUNT": is_restarted}[name]
    with pytest.raises(
        InputError, match=r"a variable of the environment is no number: .*, expected digits"
    ) as caught:
        ask()
    assert f"(in the environment's {name})" in caught.value.message
