"""Cases that failed once, and cases that are sound."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.cases import CORPUS, Case
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.mutations import mutated
from tests.fuzz.runner import Runner, judged


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    before = Path.cwd()
    yield Runner(tmp_path_factory.mktemp("fuzz"))
    os.chdir(before)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.zip")), ids=lambda path: path.stem)
def test_a_case_that_failed_is_accepted_or_refused_with_a_message(runner: Runner, path: Path) -> None:
    result = runner.run(Case.load(path))
    assert result.outcome != "fault", result.said


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_sound_files_are_accepted_by_every_command(runner: Runner, kind: str) -> None:
    result = runner.run(Case(kind=kind, files={}))
    assert result.outcome == "accepted", result.said


@pytest.mark.parametrize(
    ("code", "said", "outcome"),
    [
        (0, "", "accepted"),
        (0, "Warning: slow\n", "accepted"),
        (2, "Note.\nError: it is wrong: 3\n  in:  x\n  fix: y\n", "refused"),
        (2, "", "fault"),
        (2, "Error: a\nError: b\n", "fault"),
        (2, "Error: memory ran out: MemoryError\n", "fault"),
        (2, "Traceback (most recent call last):\nError: a\n", "fault"),
        (1, "Error: a fault of sagann\n", "fault"),
        (130, "", "fault"),
    ],
)
def test_the_outcome_of_a_command(code: int, said: str, outcome: str) -> None:
    assert judged(code, said)[0] == outcome


def test_a_case_is_kept_and_read_back_in_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    case = Case.of("NPY arrays", {folder / "a" / "x": b"1", folder / "y": str(folder).encode()}, folder)
    again = Case.load(case.save(tmp_path / "corpus"))
    assert again == case
    again.apply(tmp_path / "there")
    assert (tmp_path / "there" / "a" / "x").read_bytes() == b"1"
    assert (tmp_path / "there" / "y").read_text() == str(tmp_path / "there")


@pytest.mark.parametrize(
    # The files of a whole run come from a training.
    "kind",
    [pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] if kind.whole else []) for kind in KINDS],
)
def test_mutations_change_files_and_repeat_for_a_seed(runner: Runner, kind: Kind) -> None:
    folder = runner.prepare(kind)
    victims = sorted(path for pattern in kind.victims for path in folder.glob(pattern))
    assert victims
    num_changed = 0
    for victim in victims:
        for number in range(20):
            changes = mutated(victim, random.Random(number))
            assert changes == mutated(victim, random.Random(number))
            num_changed += any(path.read_bytes() != content for path, content in changes.items())
    assert num_changed > 15 * len(victims)
