"""Logs as JSON lines on standard error, from structlog and the standard library, masked (I9).

Lines of a request or a run that is traced carry its `trace_id` (common/tracing).
"""

import logging
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

import structlog

from common import tracing
from common.masking import Masker
from common.variables import Unknown

_QUIET = ("psycopg.pool", "httpx", "httpcore", "asyncio", "uvicorn.access")


def configure(level: str, masker: Masker, *, process: str) -> None:
    """Call once, at a composition root. `process` is on every line, e.g. "runner"."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        _traced,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _Masked(masker, process),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def warn_of(unknown: Iterable[Unknown]) -> None:
    """Variables that this version does not know; a newer one may, so they are no error."""
    log = structlog.get_logger(__name__)
    for one in unknown:
        log.warning("unknown_setting", variable=one.name, nearest=one.nearest)


def _traced(logger: Any, name: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if (traceparent := tracing.current()) is not None:
        line["trace_id"] = traceparent.split("-")[1]
    return line


class _Masked:
    """Every text of a line goes through the masker, stack traces included."""

    def __init__(self, masker: Masker, process: str) -> None:
        self._masker = masker
        self._process = process

    def __call__(
        self, logger: Any, name: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        for key, value in line.items():
            if isinstance(value, str):
                line[key] = self._masker.text(value)
            elif not key.startswith("_") and not isinstance(value, int | float | bool | None):
                line[key] = self._masker.value(value)
        line["process"] = self._process
        return line
