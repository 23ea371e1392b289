"""What is kept of a violation: the verdicts, and all that was seen of the runs that they name."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.drill.checker import Verdict
from deploy.drill.record import Record
from deploy.drill.truth import Truth

_RUN = re.compile(r"run_[0-9a-f]{32}")


def write(folder: Path, name: str, verdicts: list[Verdict], record: Record, truth: Truth) -> Path:
    """Times are those of one monotonic clock; frames are as they came. Returns the file."""
    named = {run for v in verdicts for text in v.violations for run in _RUN.findall(text)}
    file = folder / f"evidence-{name}.json"
    content = {
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "faults": [asdict(note) for note in record.faults],
        "runs": {run: _seen(record, run) for run in sorted(named)},
        "truth": asdict(truth),
    }
    file.write_text(json.dumps(content, indent=1, default=_text) + "\n")
    return file


def _seen(record: Record, run: str) -> dict[str, Any]:
    ordered = record.ordered.get(run)
    return {
        "ordered": asdict(ordered) if ordered else None,
        "clients": [asdict(seen) for seen in record.of(run)],
        "acts": [asdict(act) for act in record.acts if act.run == run],
        "looks": [asdict(look) for look in record.looks if look.run == run],
    }


def _text(value: object) -> object:
    """JSON has no bytes and no sets; a record of slots is not known to it either."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value)
