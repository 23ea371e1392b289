"""What the console's page of operations gets (contract §4)."""

from datetime import UTC, datetime
from typing import Literal, Self

from common.db.runners import Runner
from common.runs import Status
from gateway.schemas.texts import Moment
from gateway.schemas.wire import Wire


class RunnerOut(Wire):
    id: str
    host: str
    pid: int
    state: Literal["alive", "draining", "dead"]
    capacity: int
    runs: int
    age_s: float
    lease_s: float

    @classmethod
    def of(cls, row: Runner) -> Self:
        now = datetime.now(UTC)
        state = "dead" if row.dead_at else "draining" if row.draining else "alive"
        return cls(
            id=row.id,
            host=row.host,
            pid=row.pid,
            state=state,
            capacity=row.capacity,
            runs=row.runs,
            age_s=max(0.0, (now - row.started_at).total_seconds()),
            lease_s=max(0.0, (row.lease_until - now).total_seconds()),
        )


class GatewayOut(Wire):
    """`runs` are those that it follows, `lagS` is a message's way through Redis and back."""

    id: str
    host: str
    pid: int
    age_s: float
    streams: int
    runs: int
    events_sent: int
    healthy: bool
    lag_s: float | None


class TakeoverOut(Wire):
    """A run that was taken off a `runner`, and its status now."""

    run_id: str
    runner: str
    epoch: int
    at: Moment
    status: Status


class OperationsOut(Wire):
    """Ended runs count for `endedWithinS` only, and up to `endedMax` of them all."""

    at: str
    degraded: bool
    runs: dict[Status, int]
    ended_within_s: int
    ended_max: int
    queue_age_s: float
    runners: list[RunnerOut]
    gateways: list[GatewayOut]
    takeovers: list[TakeoverOut]
