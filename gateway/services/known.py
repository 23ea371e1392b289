"""Runs whose stream was opened here: enough to open it again while Postgres is away.

A client that reconnects then is served what Redis has, live and replayed. Whose run it is was seen
in Postgres and does not change; everything else of a row may be old, which a reader of the log does
not mind: the log itself says how far it goes and when it has ended.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from common.db.runs import Run

RUNS_MAX: Final = 10_000


class KnownRuns:
    """The last ones, bounded; without what can be large in them."""

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._runs: OrderedDict[str, Run] = OrderedDict()

    def note(self, run: Run) -> None:
        self._runs[run.id] = replace(run, input={}, principal={}, metadata={}, output=None)
        self._runs.move_to_end(run.id)
        if len(self._runs) > self._runs_max:
            self._runs.popitem(last=False)

    def find(self, run_id: str, user: str) -> Run | None:
        """As it was when it was noted; None for anybody else's."""
        run = self._runs.get(run_id)
        return run if run is not None and run.user_id == user else None

    def forget(self, run_id: str, user: str) -> None:
        """The user's run is gone. A stranger, to whom it is none, takes it from nobody."""
        if self.find(run_id, user) is not None:
            del self._runs[run_id]
