"""The Python client: typed, asynchronous, exact (contract §3 to §5).

Its stream gives every event once and in order, whatever breaks; `Transcript` turns events into what
is to be shown. `steadyrun chat`, `load` and a kind of the drill's clients are built on it.
"""

from common.errors import Refused
from deploy.client.calls import Patience, TokenSource, Unreachable
from deploy.client.client import Client, RunOptions
from deploy.client.events import Event
from deploy.client.objects import Conversation, Interrupt, Message, ResumeState, Run, Ticket
from deploy.client.stream import RunStream
from deploy.client.transcript import Transcript

__all__ = [
    "Client",
    "Conversation",
    "Event",
    "Interrupt",
    "Message",
    "Patience",
    "Refused",
    "ResumeState",
    "Run",
    "RunOptions",
    "RunStream",
    "Ticket",
    "TokenSource",
    "Transcript",
    "Unreachable",
]
