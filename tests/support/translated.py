"""Events as short lines with readable names, so that a test can show a whole stream."""

import json
from typing import Any

from common.events import EVENT_FIELDS, Event
from common.masking import Masker
from runner.translate import Translator
from tests.support.record_chunks import Recording


class Names:
    """`model#1` for the first step of the node `model`, `m1` for the first message."""

    def __init__(self, recording: Recording) -> None:
        self._steps: dict[str | None, str] = {None: "-"}
        self._messages: dict[str, str] = {}
        count: dict[str, int] = {}
        for chunk in recording.chunks:
            data = chunk["data"]
            if chunk["type"] == "tasks" and data["id"] not in self._steps:
                count[data["name"]] = count.get(data["name"], 0) + 1
                self._steps[data["id"]] = f"{data['name']}#{count[data['name']]}"

    def line(self, event: Event) -> str:
        fields = dict(event.fields)
        fields.pop("node", None)
        if "messageId" in fields:
            known = self._messages
            fields["messageId"] = known.setdefault(fields["messageId"], f"m{len(known) + 1}")
        told = " ".join(_word(value) for value in fields.values())
        return f"{event.type} {self._steps[event.step_id]} {told}".strip()


def _word(value: Any) -> str:
    plain = isinstance(value, str) and value.isalnum()
    text = value if plain else json.dumps(value, ensure_ascii=False)
    return text if len(text) < 24 else text[:20] + "…"


def translator(recording: Recording, **options: Any) -> Translator:
    given = {"run_id": "run_1", "mask": Masker(), "callback": recording.steps, **options}
    return Translator(**given)


def events(recording: Recording, made: Translator | None = None) -> list[Event]:
    """All events; each is checked against the table of contract §3."""
    made = made or translator(recording)
    found = [event for chunk in recording.chunks for event in made.feed(chunk)] + made.close()
    for event in found:
        required, optional = EVENT_FIELDS[event.type]
        assert required <= event.fields.keys() <= required | optional, event
    return found


def told(recording: Recording, made: Translator | None = None) -> list[str]:
    names = Names(recording)
    return [names.line(event) for event in events(recording, made)]
