"""When a run counts as abandoned: somebody has watched it, and nobody does any more (contract §4).

Pure: what was seen in, the abandoned runs out. Only time in which the run is executed counts, so a
run that is taken up has a whole grace period, whoever left while it waited. Not knowing is never
absence. After anything that Redis can have forgotten (another server, one that did not answer, a
memory that began anew) absence is believed only once every gateway has had the time to say it
again and whoever reads has had the grace period on top.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.bus.presence import Attended, Look

Held = tuple[str, int]
"""Run and epoch: a run that is taken up again begins anew."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """`watched`: somebody has been there, be it forgotten since. `since` is of the last look.
    `absent_since`: the first of all looks in a row that saw nobody.
    """

    watched: bool = False
    since: str = ""
    absent_since: float | None = None
    believed_from: float = 0.0


class Absence:
    """`grace_s`: how long nobody may watch; `relearn_s`: how long after a loss nothing is believed.

    All moments are of one monotonic clock, in seconds.
    """

    def __init__(self, *, grace_s: float, relearn_s: float) -> None:
        self._grace_s, self._relearn_s = grace_s, relearn_s
        self._identity: str | None = None
        self._believed_from = 0.0
        self._watches: dict[Held, _Watch] = {}

    def unanswered(self) -> None:
        """The next look may be at a server that has forgotten everything."""
        self._identity = None

    def looked(self, now: float, held: Mapping[str, Held], look: Look) -> list[Held]:
        """The abandoned ones of the runs that are held, by run id."""
        if held and look.identity != self._identity:
            self._identity, self._believed_from = look.identity, now + self._relearn_s
        self._watches = {
            one: self._seen(now, self._watches.get(one, _Watch()), look.runs[run_id])
            for run_id, one in held.items()
            if run_id in look.runs
        }
        return [one for one, watch in self._watches.items() if self._abandoned(now, watch)]

    def _seen(self, now: float, watch: _Watch, attended: Attended) -> _Watch:
        if watch.watched and attended.since != watch.since:  # lost, or begun anew
            watch = replace(watch, believed_from=now + self._relearn_s)
        watched = watch.watched or attended.present >= 0
        absent_since = now if watch.absent_since is None else watch.absent_since
        return replace(
            watch,
            watched=watched,
            since=attended.since,
            absent_since=absent_since if watched and attended.present <= 0 else None,
        )

    def _abandoned(self, now: float, watch: _Watch) -> bool:
        return (
            watch.absent_since is not None
            and now - watch.absent_since >= self._grace_s
            and now >= max(watch.believed_from, self._believed_from)
        )
