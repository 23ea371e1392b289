"""The embedded servers where their processes die at unlucky moments."""

import os
import signal
from pathlib import Path

from deploy.embedded import PostgresServer
from deploy.process import spawn, working_in
from deploy.state import StateFolder


def test_what_a_killed_postgres_leaves_is_ended_before_a_new_one_starts(folder: Path) -> None:
    """Its processes notice its death only when they look up; stopped ones never do. A second server
    beside one that still writes destroys the data."""
    with StateFolder.open(folder) as state:
        server = PostgresServer(state, durable=False)
        server.prepare()
        postmaster = spawn(server.command())
        while not server.is_ready(postmaster.pid):
            assert postmaster.poll() is None
        data = server._data
        left = [pid for pid in working_in(data, "postgres") if pid != postmaster.pid]
        assert left
        for pid in left:
            os.kill(pid, signal.SIGSTOP)
        postmaster.kill()
        postmaster.wait()
        assert working_in(data, "postgres")
        server.prepare()
        assert working_in(data, "postgres") == []
