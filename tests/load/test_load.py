"""`steadyrun load` on systems of its own, small: that it measures, not what it measures."""

import json
import math
from pathlib import Path

import pytest

from deploy.load import Choices, compared, load
from deploy.load.metrics import METRICS, SHAPES
from deploy.load.report import Report, Size
from deploy.load.stage import Amount

SMALL = Amount(runs=4, subscribers=20, events=60, rate=100.0, seconds=2.0)


@pytest.mark.timeout(900)
def test_every_shape_measures_a_system_of_its_own_and_loses_nothing(tmp_path: Path) -> None:
    file, charts = tmp_path / "figures.json", tmp_path / "charts"
    choices = Choices(
        shapes=SHAPES,
        amount=SMALL,
        replicas=[Size(2, 2)],
        json_file=file,
        markdown_file=tmp_path / "report.md",
        charts=charts,
    )
    said: list[str] = []
    assert load(choices, said.append) == 0, said
    figures = json.loads(file.read_text())["sizes"][0]["shapes"]
    assert {shape: set(found) for shape, found in figures.items()} == {
        shape: set(metrics) for shape, metrics in METRICS.items()
    }
    assert figures["overhead"]["ratio_100"] > 0
    assert figures["watchers"]["delivered_share"] == 100
    assert figures["reconnects"]["lost"] == figures["reconnects"]["doubled"] == 0
    assert figures["approvals"]["accepted"] == 1
    assert figures["kills"]["unfinished"] == 0
    assert len(list(charts.glob("*.svg"))) >= len(SHAPES)
    assert "## kills" in (tmp_path / "report.md").read_text()
    assert compared(file, file, said.append) == 0
    again = Report.read(file).sizes[Size(2, 2)]["runs"]["runs_per_s"]
    assert math.isclose(again, figures["runs"]["runs_per_s"])
