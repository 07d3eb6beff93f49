import pickle

import pytest

from sagann.errors import (
    CheckpointError,
    DatasetError,
    InputError,
    LayerError,
    MissingDependencyError,
    SagannError,
    first_line,
    in_one_line,
    shown,
)


@pytest.mark.parametrize("kind", [SagannError, CheckpointError])
def test_an_error_is_a_message_and_a_hint(kind: type[SagannError]) -> None:
    error = kind("id out of range: 7, limit 5 (in edge 3)", hint="Renumber.")
    assert str(error) == "id out of range: 7, limit 5 (in edge 3). Renumber."
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.hint) == (kind, error.message, "Renumber.")


def test_input_errors_are_value_errors_and_layer_errors_type_errors() -> None:
    assert issubclass(DatasetError, InputError)
    assert issubclass(InputError, ValueError)
    assert issubclass(LayerError, TypeError)


def test_a_missing_package_names_its_extra() -> None:
    error = MissingDependencyError("tensorboard", extra="tensorboard", feature="--tensorboard")
    assert "pip install 'sagann[tensorboard]'" in str(error)
    assert isinstance(error, ImportError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n  \nwrong\nmore")) == "wrong"
    assert in_one_line(ValueError("\nwrong\nmore")) == "ValueError: wrong"
    assert first_line(MemoryError()) == in_one_line(MemoryError(" \n")) == "MemoryError"


def test_values_are_shown_in_few_characters() -> None:
    assert shown([1, "a"]) == "[1, 'a']"
    assert shown("a" * 100, 20) == "'" + "a" * 16 + "..."
    assert shown([10**10_000]) == "a value with an integer of thousands of digits"
