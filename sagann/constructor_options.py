"""Options that a person gives to a constructor by name: of an optimizer, of a scheduler, of a model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sagann.errors import InputError, closest, shown


def check_options(
    kind: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    taken: Collection[str],
    where: str,
    what: str,
    by_type: bool = True,
    name: str = "",
) -> None:
    """Refuse options that a class, or another function that makes an object, does not take, or that are ``taken``: that are given otherwise.

    With ``by_type``, a value has the type of the parameter, where that is bool, int, float or str by its annotation or else by its default.
    ``where`` and ``what`` name the options for errors.
    """
    name, parameters = name or kind.__name__, inspect.signature(kind).parameters
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [key for key, each in parameters.items() if each.kind in named and key not in taken]
    for key, value in options.items():
        if key in taken:
            problem = f"{what} sets an argument that has an option of its own"
            raise InputError(f"{problem}: '{key}' (in {where})", hint="Leave it out.")
        if key in known:
            expected = _type_of(parameters[key]) if by_type else None
            if not (expected is None or type(value) is expected or (expected is float and type(value) is int)):
                noun = _NOUNS[expected]
                found = f"option {key} of {name} is not {noun}: {shown(value)} (in {where})"
                raise InputError(found, hint=f"Pass {noun}.")
        elif all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
            hint = closest(key, known) if known else "Leave it out: it takes none."
            raise InputError(f"{name} has no such option: {shown(key)} (in {where})", hint=hint)


def require_options(options: object, *, where: str, what: str) -> None:
    """Refuse options that are no mapping of names, or that JSON cannot hold, for a run saves them."""
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InputError(
            f"{what} is no mapping of option to value: {shown(options)} (in {where})",
            hint="Pass names and their values.",
        )
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"{what} cannot be saved as JSON: '{name}' is {shown(value)}: {error} (in {where})",
                hint="Use numbers, strings, lists and mappings; in Python, a Trainer also takes functions.",
            ) from error


_NOUNS: dict[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
_KINDS = {kind.__name__: kind for kind in _NOUNS}


def _type_of(parameter: inspect.Parameter) -> type | None:
    """The type of a parameter's values by its annotation, else by its default; None where neither is a simple one."""
    if parameter.annotation is not inspect.Parameter.empty:
        # Annotations are texts where a file has postponed them.
        name = getattr(parameter.annotation, "__name__", parameter.annotation)
        return _KINDS.get(name) if isinstance(name, str) else None
    found = type(parameter.default)
    # A default of 0 may stand for any number.
    return float if found is int else found if found in _NOUNS else None
