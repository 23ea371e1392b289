"""Checking values against the JSON schemas that a question carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from common.hitl.kinds import Invalid

_MISTAKES = (SchemaError, Unresolvable, TypeError, ValueError, RecursionError)
"""An author's: no schema, a reference that leads nowhere, or round and round."""


def mismatch(schema: Any, value: Any, where: str) -> Invalid | None:
    """The first place where a value does not fit its schema; the value itself is not repeated."""
    validator = validator_of(schema) if isinstance(schema, Mapping) else None
    if validator is None:
        return None
    try:
        error = next(iter(validator.iter_errors(value)), None)
    except _MISTAKES:
        return None
    if error is None:
        return None
    place = ".".join([where, *map(str, error.absolute_path)])
    return Invalid(f"{place} does not fit its schema ({error.validator}{_missing(error)})")


def validator_of(schema: Mapping[str, Any]) -> Validator | None:
    """A validator, or None for a schema that is none: an author's mistake must not stop people.

    Its registry is empty, so that no reference is fetched from anywhere.
    """
    try:
        kind = validator_for(schema)
        kind.check_schema(dict(schema))
    except _MISTAKES:
        return None
    return kind(dict(schema), registry=Registry())


def _missing(error: ValidationError) -> str:
    """Names of required properties are the schema's and may be told."""
    if error.validator != "required" or not isinstance(error.instance, Mapping):
        return ""
    required: Any = error.validator_value
    names = [str(name) for name in required if name not in error.instance]
    return f": {', '.join(names)}"
