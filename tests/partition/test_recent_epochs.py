"""Usual seconds and their errors stay as they are while single epochs are much longer."""

from __future__ import annotations

from collections.abc import Sequence

from sagann.partition import RecentEpochs


def recent(*epochs: Sequence[float], kind: str = "gather") -> RecentEpochs:
    """Epochs of one kind of operation, with the seconds of each worker."""
    found = RecentEpochs()
    for seconds in epochs:
        found = found.followed_by({kind: seconds})
    return found


def test_usual_seconds_are_the_lower_median() -> None:
    found = recent((1.0, 9.0), (3.0, 7.0), (2.0, 8.0))
    assert found.usual["gather"].tolist() == [2.0, 8.0]
    assert found.followed_by({"gather": (0.5, 7.5)}).usual["gather"].tolist() == [1.0, 7.5]
    assert recent((2.0,), (9.0,)).usual["gather"].tolist() == [2.0]


def test_seven_epochs_are_kept() -> None:
    found = recent(*[(number,) for number in (100.0, 100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)])
    assert found.count == 7
    assert found.usual["gather"].tolist() == [4.0]
    assert RecentEpochs().count == 0


def test_other_operations_begin_anew() -> None:
    found = recent((1.0,), (2.0,)).followed_by({"gather": (3.0,), "sum": (4.0,)})
    assert found.count == 1
    assert {kind: usual.tolist() for kind, usual in found.usual.items()} == {"gather": [3.0], "sum": [4.0]}


def test_three_disturbed_epochs_of_seven_hardly_change_errors() -> None:
    calm = [(1.0,), (1.02,), (0.98,), (1.03,)]
    found = recent(*calm, (2.0,), (3.0,), (4.0,))
    assert found.usual["gather"].tolist() == [1.03]
    assert found.errors[0] < 0.04
    assert found.spread < 0.1
