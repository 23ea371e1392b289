"""Places in a guarded effect where a process stops or kills itself, when a test has asked for it.

A test writes an order into `EFFECT_FAULTS/<key>`: a signal and a place. Whichever process comes
there first with that key takes the order and obeys, once. The places, in their order:

    asking      before the statement that begins
    begun       it has answered; nothing was started
    started     inside the effect, before its line
    appended    inside the effect, after its line
    returned    before the statement that stores the outcome
    noted       it has answered

In a process without EFFECT_FAULTS nothing happens.
"""

import os
import signal
from pathlib import Path

STOP, KILL = "SIGSTOP", "SIGKILL"
PLACES = ("asking", "begun", "started", "appended", "returned", "noted")


def come_to(place: str, key: str) -> None:
    folder = os.environ.get("EFFECT_FAULTS")
    if not folder:
        return
    order = Path(folder) / key
    try:
        sign, wanted = order.read_text().split()
        if wanted != place:
            return
        order.rename(order.with_suffix(".obeyed"))
    except (FileNotFoundError, ValueError):
        return
    os.kill(os.getpid(), signal.Signals[sign])
