"""The list of defences stays true: each can still be taken out (tests/faults/mutants.py)."""

import shutil
from pathlib import Path

import pytest

from tests.faults.defences import DEFENCES, Defence

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.name)
def test_a_defence_stands_where_the_list_says(defence: Defence, tmp_path: Path) -> None:
    """Moved or reworded? Then change its text in tests/faults/defences.py, and run
    `python -m tests.faults.mutants NAME` to see that its tests still notice its absence."""
    for file in {edit.file for edit in defence.edits}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    before = {edit.file: (tmp_path / edit.file).read_text() for edit in defence.edits}
    defence.take_out(tmp_path)
    assert all((tmp_path / file).read_text() != text for file, text in before.items())
    for test in (t for t in defence.tests if t.startswith("tests/")):
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file()
        assert f"def {name}(" in (ROOT / file).read_text() or not name


def test_names_are_unique() -> None:
    names = [defence.name for defence in DEFENCES]
    assert len(names) == len(set(names))
