"""What every execution of a runner shares; put together in `runner/app`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from common.bus.log import LogConnection
from common.bus.signals import Signals
from common.db.engine import Database
from common.masking import Masker
from common.settings import RunnerSettings
from common.tracing import Tracing
from runner.leftovers import Leftovers
from runner.metrics import Metrics
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
    leftovers: Leftovers
    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing = field(default_factory=Tracing)

    def timeout_s(self, graph: str) -> float:
        """Longest execution of a run of this graph, over all its owners."""
        return self.registry.spec(graph).run_timeout_s or self.settings.run_timeout_s
