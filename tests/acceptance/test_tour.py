"""The README's five minutes, run as they are printed."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deploy.readme import README
from tests.support.cluster import Cluster


def tour_blocks() -> str:
    text = README.read_text(encoding="utf-8")
    [tour] = re.findall(r"<!-- tour:.*?-->(.*?)<!-- /tour -->", text, flags=re.DOTALL)
    blocks = re.findall(r"```sh\n(.*?)```", tour, flags=re.DOTALL)
    assert len(blocks) >= 6
    return "set -euo pipefail\n" + "\n".join(blocks)


@pytest.mark.timeout(180)
def test_the_five_minute_tour_works_as_printed() -> None:
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / ".venv").symlink_to(sys.prefix)
        with Cluster(folder / ".steadyrun").running() as cluster:
            runners = {p.pid for p in cluster.topology.of("runner")}
            done = subprocess.run(
                ["bash", "-c", tour_blocks()],
                cwd=folder,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": name, "URL": cluster.url},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            cluster.until(lambda: len(cluster.topology.of("runner")) == 2)
            assert runners.isdisjoint(p.pid for p in cluster.topology.of("runner"))
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        first, second = (folder / "first.txt").read_text(), (folder / "second.txt").read_text()
    assert "event: interrupt\n" in first
    assert "event: done\n" not in first
    assert second.count("event: run_resumed\n") == 1
    assert second.rstrip().rpartition("\n\n")[2].split("\n")[1] == "event: done"
    assert '"complete": true' in said
    assert said.count("was restarted. It is running again") == 1
    assert "payment-api" in said.rpartition('"complete": true')[2]
