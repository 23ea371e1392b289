"""How the load command counts and reads, without a system under load."""

import json
import math
import os
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from common.errors import Misconfigured
from deploy.load import Choices, listing, load, sizes
from deploy.load.client import Order
from deploy.load.compare import rows
from deploy.load.machine import Machine, Stat, family_cpu_s
from deploy.load.metrics import DOES, METRICS
from deploy.load.report import Report, Size, draw, markdown, text
from deploy.load.shapes import SHAPES
from deploy.load.stage import Amount
from deploy.load.tap import SAMPLED_EVERY, Counter, Numbers
from deploy.topology import Process, Topology
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
        counter.take(STREAM[start:end], 1.0)
    assert counter.events == 20


def test_the_first_event_is_timed_and_comments_are_not() -> None:
    counter = Counter()
    counter.take(b": hello\n", 1.0)
    counter.take(b"id: 1\nevent: x\ndata: {}\n\n", 2.0)
    counter.take(b"id: 2\nevent: x\ndata: {}\n\n", 3.0)
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
    said = order_in([HumanMessage(order.content)])
    assert (said.kind, said.events, said.rate, said.hold) == ("custom", 7, 2.0, True)


def made(**shapes: dict[str, float]) -> Report:
    report = Report("steadyrun load x", Amount(), {"cores": 2, "system": "S", "python": "3"})
    report.add(Size(1, 1), dict(shapes))
    return report


def test_a_report_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    found = {"events_per_cpu_s": 20_000.0, "delivered_share": 100.0, "apart_us_per_event": math.nan}
    file = tmp_path / "report.json"
    file.write_text(json.dumps(made(watchers=found).wire()))
    assert Report.read(file).wire() == made(watchers=found).wire()
    assert (
        json.loads(file.read_text())["sizes"][0]["shapes"]["watchers"]["apart_us_per_event"] is None
    )


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": 1, "amount": {"x": 1}}'])
def test_what_is_no_report_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(content)
    with pytest.raises(Misconfigured, match="is no report"):
        Report.read(file)


def test_what_was_lost_is_said_and_makes_the_load_fail() -> None:
    report = made(watchers={"delivered_share": 99.5}, reconnects={"lost": 0, "doubled": 2})
    losses = ["watchers.delivered_share at 1+1: 99.5", "reconnects.doubled at 1+1: 2"]
    assert report.losses() == losses
    assert all(f"LOST  {loss}" in text(report) for loss in losses)


def test_a_report_for_people_has_a_column_for_each_size_and_no_figure_that_is_none() -> None:
    report = made(watchers={"stream_kib": 17.84, "apart_us_per_event": math.nan})
    report.add(Size(3, 3), {"watchers": {"stream_kib": 0.0, "apart_us_per_event": math.nan}})
    shown = markdown(report)
    assert "| figure | unit | 1+1 | 3+3 |" in shown
    assert "| gateway memory of an open stream | KiB | 17.8 | 0 |" in shown
    assert "does not follow" not in shown


def test_charts_are_images_that_say_what_they_show(tmp_path: Path) -> None:
    report = made(watchers={"events_per_cpu_s": 20_000.0})
    report.add(Size(2, 2), {"watchers": {"events_per_cpu_s": 10_000.0}})
    draw(report, tmp_path)
    (file,) = tmp_path.glob("*.svg")
    root = ElementTree.fromstring(file.read_text())
    widths = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert "CPU second" in root.attrib["aria-label"]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.1)


def test_a_comparison_names_what_got_worse_beyond_chance() -> None:
    before = made(watchers={"events_per_cpu_s": 100.0, "stream_kib": 10.0, "latency_p50_ms": 1.0})
    after = made(watchers={"events_per_cpu_s": 70.0, "stream_kib": 11.0, "latency_p50_ms": 9.0})
    verdicts = {row.metric.unit: (row.verdict, row.is_worse) for row in rows(before, after)}
    assert verdicts == {"/s": ("worse", True), "KiB": ("=", False), "ms": ("worse", False)}


@pytest.mark.parametrize(
    ("said", "found"),
    [("2", [Size(2, 2)]), ("1,2", [Size(1, 1), Size(2, 2)]), ("1+3,2+2", [Size(1, 3), Size(2, 2)])],
)
def test_sizes_are_said_in_short(said: str, found: list[Size]) -> None:
    assert sizes(said) == found


@pytest.mark.parametrize("said", ["", "0", "x", "1+2+3", "1,,2", "-1"])
def test_sizes_that_are_none_are_refused(said: str) -> None:
    with pytest.raises(Misconfigured, match="--replicas"):
        sizes(said)


def test_latency_is_read_from_some_events_and_never_negative() -> None:
    counter = Counter()
    for _ in range(SAMPLED_EVERY):
        counter.take(b'id: 1\nevent: x\ndata: {"at":"2020-01-01T00:00:00.000Z"}\n\n', 0.0)
        counter.take(b'id: 2\nevent: x\ndata: {"at":"2999-01-01T00:00:00.000Z"}\n\n', 0.0)
    assert len(counter.latencies_s) == 2 * SAMPLED_EVERY // SAMPLED_EVERY
    assert min(counter.latencies_s) == 0.0


def test_of_events_that_come_together_the_one_that_waited_longest_counts() -> None:
    earlier, now = b'{"at":"2020-01-01T00:00:00.000Z"}', b'{"at":"2999-01-01T00:00:00.000Z"}'
    counter = Counter()
    for _ in range(SAMPLED_EVERY):
        counter.take(b"id: 1\ndata: %s\n\nid: 2\ndata: %s\n\n" % (earlier, now), 0.0)
    assert counter.latencies_s[0] > 0


def test_a_lost_and_a_doubled_event_do_not_make_up_for_each_other() -> None:
    numbers = Numbers()
    counter = Counter(numbers=numbers)
    counter.take(b": hi\nretry: 1000\nid: 1\ndata: {}\n\nid: 3\nda", 0.0)
    numbers.cut()
    counter.take(b"id: 3\ndata: {}\n\n", 0.0)
    counter.take(b"id: 3\ndata: {}\n\nid: 4\ndata: {}\n\n", 0.0)
    assert (numbers.last, numbers.lost, numbers.doubled) == (4, 1, 1)


def test_every_shape_has_its_figures_and_a_line_about_it() -> None:
    assert set(SHAPES) == set(METRICS) == set(DOES)
    assert all(name in listing() for name in SHAPES)


def test_shapes_that_kill_need_a_system_of_their_own() -> None:
    with pytest.raises(Misconfigured, match="kills"):
        load(Choices(shapes=["kills"], url="http://127.0.0.1:1"), str)
