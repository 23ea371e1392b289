"""How the load command counts and reads, without a system under load."""

import json
import os
import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from deploy.load import report
from deploy.load.client import Counter, Order
from deploy.load.machine import Machine, Stat, family_cpu_s
from deploy.load.measures import FanOut, Overhead
from deploy.topology import Process, Role, Topology
from runner.graphs.load.graph import order_in

STREAM = b": hello\n" + b"".join(
    b"%sid: %d\nevent: x\ndata: {}\n\n%s" % (b"retry: 1000\n" * (n == 1), n, b": beat\n" * (n % 3))
    for n in range(1, 21)
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_counted_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    counter = Counter()
    for start, end in pairwise(edges):
        counter.take(STREAM[start:end], now_s=1.0)
    assert counter.events == 20


def test_the_first_event_is_timed_and_comments_are_not() -> None:
    counter = Counter()
    counter.take(b": hello\n", now_s=1.0)
    counter.take(b"id: 1\nevent: x\ndata: {}\n\n", now_s=2.0)
    counter.take(b"id: 2\nevent: x\ndata: {}\n\n", now_s=3.0)
    assert counter.first_s == 2.0


def test_a_process_is_read_whatever_its_name_is() -> None:
    fields = "S 7 1 1 0 -1 4194560 1 0 0 0 200 100 50 25 20 0 1 0 99 1048576 10"
    stat = Stat.parse(f"42 (a) R (b) {fields}")
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert stat == Stat(7, 300 / tick, 75 / tick, 10 * page)


def test_a_server_costs_what_its_living_and_ended_children_cost() -> None:
    stats = {
        1: Stat(parent=0, cpu_s=1.0, reaped_cpu_s=10.0, resident_bytes=0),
        2: Stat(parent=1, cpu_s=2.0, reaped_cpu_s=0.0, resident_bytes=0),
        3: Stat(parent=2, cpu_s=4.0, reaped_cpu_s=0.0, resident_bytes=0),
        4: Stat(parent=0, cpu_s=99.0, reaped_cpu_s=0.0, resident_bytes=0),
    }
    assert family_cpu_s(1, stats) == 17.0
    assert family_cpu_s(5, stats) == 0.0


def test_work_of_this_process_is_seen() -> None:
    here = Process("gateway-1", "gateway", os.getpid())
    machine = Machine(Topology("", "", "", "", [here]))
    before = machine.cpu_s()["gateway"]
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert machine.cpu_s()["gateway"] > before
    assert machine.resident_bytes("gateway") > 1 << 20


def test_the_graph_understands_the_order() -> None:
    order = Order("custom", 7, rate=2.0, hold=True)
    said = order_in([HumanMessage(order.body()["message"]["content"])])
    assert (said.kind, said.events, said.rate, said.hold) == ("custom", 7, 2.0, True)


def test_the_report_holds_the_ratio_and_what_was_lost() -> None:
    ours: dict[Role, float] = {"gateway": 2.0, "runner": 10.0, "postgres": 3.0}
    row = Overhead("tokens", 10, ours, 8.0, 2.0, 50, 90)
    fan = FanOut(
        subscribers=2, delivered=9, expected=10, gateway_cpu_s=0.5, idle_bytes_per_stream=1
    )
    figures = report.wire([row], fan)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["overhead"][0]["ratio"] == 1.5
    assert figures["overhead"][0]["ratio_of_all"] == 1.5
    assert figures["fanOut"]["events_per_cpu_s"] == 18
    assert "9 of 10" in report.table([row], fan)
