"""Settings as the environment gives them, for composition roots; one line names what is wrong."""

import os
from typing import TypeVar

from pydantic import ValidationError

from common import variables
from common.errors import Unusable
from common.settings import GatewaySettings, RunnerSettings, Settings
from common.variables import Unknown

AnySettings = TypeVar("AnySettings", bound=Settings)


def variable(field: str) -> str:
    """The environment's name of a setting."""
    name = field.upper()
    return name if name in ("DATABASE_URL", "REDIS_URL") else f"{variables.PREFIX}{name}"


VARIABLES: frozenset[str] = frozenset(
    variable(field) for kind in (GatewaySettings, RunnerSettings) for field in kind.model_fields
) | {f"{variables.PREFIX}DATABASE_URL", f"{variables.PREFIX}REDIS_URL"}


def unknown_variables() -> list[Unknown]:
    """What the environment sets and nobody reads; raises Unusable, naming each, if it is a slip."""
    found = variables.unknown(os.environ, VARIABLES)
    if slips := [str(one) for one in found if one.is_slip]:
        raise Unusable("; ".join(slips))
    return found


def load(kind: type[AnySettings], **given: str) -> AnySettings:
    """The settings of the environment, and `given` before it; raises Unusable with one line naming
    each variable."""
    try:
        return kind(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise Unusable("; ".join(_causes(error))) from error


def _causes(error: ValidationError) -> list[str]:
    """One cause a variable, without its value: it may be a secret."""
    return [
        f"{variable(str(part['loc'][0]))}: {_cause(part['type'], part['msg'])}"
        for part in error.errors(include_input=False, include_url=False)
    ]


def _cause(kind: str, message: str) -> str:
    return "must be set" if kind == "missing" else message.removeprefix("Value error, ")
