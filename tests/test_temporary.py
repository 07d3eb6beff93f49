from pathlib import Path

import pytest

from sagann import temporary
from sagann.temporary import Removal, remove_all


@pytest.fixture(autouse=True)
def _no_other_removals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_PENDING", set())


def test_what_no_owner_has_removed_is_removed(tmp_path: Path) -> None:
    files = [tmp_path / "mine", tmp_path / "forgotten"]
    removals = []
    for file in files:
        file.touch()
        removals.append(Removal(file.unlink))
    removals[0]()
    assert [file.exists() for file in files] == [False, True]
    # A second removal of the first file would raise FileNotFoundError.
    remove_all()
    assert not files[1].exists()
    remove_all()


def test_a_removal_that_was_interrupted_is_made_again(tmp_path: Path) -> None:
    file, interrupts = tmp_path / "file", [KeyboardInterrupt]
    file.touch()

    def remove() -> None:
        if interrupts:
            raise interrupts.pop()
        file.unlink()

    removal = Removal(remove)
    with pytest.raises(KeyboardInterrupt):
        removal()
    assert file.exists()
    remove_all()
    assert not file.exists()
