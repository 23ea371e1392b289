"""`steadyrun load` on a topology of its own, small: that it measures, not what it measures."""

import json
from pathlib import Path

import pytest

from deploy.load import Choices, load


@pytest.mark.timeout(600)
def test_load_measures_a_system_of_its_own_and_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    choices = Choices(runs=4, subscribers=20, events=50, rate=100.0, json_file=file)
    said: list[str] = []
    assert load(choices, said.append) == 0
    figures = json.loads(file.read_text())
    assert [row["events"] for row in figures["overhead"]] == [10, 100]
    assert all(row["ratio"] > 0 for row in figures["overhead"])
    assert figures["fanOut"]["delivered"] == figures["fanOut"]["expected"] >= 20 * 50
    assert "ratio" in said[-1]
