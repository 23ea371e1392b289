"""What every execution of a runner shares; put together in `runner/app`."""

from collections.abc import Callable
from dataclasses import dataclass

from common.bus.log import LogConnection
from common.bus.signals import Signals
from common.db.engine import Database
from common.masking import Masker
from common.settings import RunnerSettings
from runner.publisher import Publisher
from runner.questions import Questions
from runner.registry import Registry
from runner.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Kit:
    db: Database
    bus_log: LogConnection
    publisher: Publisher
    sessions: Sessions
    registry: Registry
    masker: Masker
    signals: Signals
    settings: RunnerSettings
    questions: Questions
    may_execute: Callable[[], bool]
    """Whether the lease holds, by the local clock; for any thread."""
