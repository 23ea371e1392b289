"""What is measured: one table of every figure, its unit and what is better.

Reports, charts and comparisons are made from it, so that a new figure is a line here and a value in
a shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`noisy`: a time of the clock, which moves with whatever else the machine does."""

    title: str
    unit: str
    better: Better = "lower"
    noisy: bool = False


_FIRST = "first event after the request"
_LATENCY = "from the event made to the client, oldest of a piece"

METRICS: Mapping[str, Mapping[str, Metric]] = {
    "overhead": {
        "ratio_10": Metric("gateway + runner to the bare graph, 10 tokens", "times"),
        "ratio_100": Metric("gateway + runner to the bare graph, 100 tokens", "times"),
        "ratio_all_10": Metric("the same with the servers on both sides, 10 tokens", "times"),
        "ratio_all_100": Metric("the same with the servers on both sides, 100 tokens", "times"),
        "gateway_ms_10": Metric("gateway's CPU of a run of 10 tokens", "ms"),
        "runner_ms_10": Metric("runner's CPU of a run of 10 tokens", "ms"),
        "bare_ms_10": Metric("the bare graph's CPU for 10 tokens", "ms"),
        "gateway_ms_100": Metric("gateway's CPU of a run of 100 tokens", "ms"),
        "runner_ms_100": Metric("runner's CPU of a run of 100 tokens", "ms"),
        "bare_ms_100": Metric("the bare graph's CPU for 100 tokens", "ms"),
    },
    "watchers": {
        "delivered_share": Metric("events delivered of those said", "%", "higher"),
        "events_per_cpu_s": Metric("events delivered per CPU second of gateways", "/s", "higher"),
        "latency_p50_ms": Metric(f"{_LATENCY}, median", "ms", noisy=True),
        "latency_p99_ms": Metric(f"{_LATENCY}, p99", "ms", noisy=True),
        "stream_kib": Metric("gateway memory of an open stream", "KiB"),
        "apart_us_per_event": Metric(
            "CPU per event of each gateway that does not follow the run", "µs"
        ),
    },
    "runs": {
        "delivered_share": Metric("events delivered of those said", "%", "higher"),
        "runs_per_s": Metric("runs finished a second", "/s", "higher", noisy=True),
        "first_event_p50_ms": Metric(f"{_FIRST}, median", "ms", noisy=True),
        "first_event_p99_ms": Metric(f"{_FIRST}, p99", "ms", noisy=True),
        "latency_p50_ms": Metric(f"{_LATENCY}, median", "ms", noisy=True),
        "latency_p99_ms": Metric(f"{_LATENCY}, p99", "ms", noisy=True),
        "events_per_cpu_s": Metric("events per CPU second of gateways and runners", "/s", "higher"),
        "cpu_ms_per_run": Metric("CPU of all processes per run", "ms"),
    },
    "reconnects": {
        "lost": Metric("events lost over all reconnects", "", "lower"),
        "doubled": Metric("events had twice over all reconnects", "", "lower"),
        "back_p50_ms": Metric("back on the stream after the cut, median", "ms", noisy=True),
        "back_p99_ms": Metric("back on the stream after the cut, p99", "ms", noisy=True),
        "gateway_us_per_reconnect": Metric("CPU of gateways per reconnect", "µs"),
    },
    "approvals": {
        "accepted": Metric("decisions accepted per question (of two clicks)", "", "lower"),
        "answer_p50_ms": Metric("answer to a decision, median", "ms", noisy=True),
        "answer_p99_ms": Metric("answer to a decision, p99", "ms", noisy=True),
        "done_p50_ms": Metric("from the decision to the run's end, median", "ms", noisy=True),
        "done_p99_ms": Metric("from the decision to the run's end, p99", "ms", noisy=True),
        "cpu_ms_per_approval": Metric("CPU of all processes per approval", "ms"),
    },
    "idle": {
        "stream_kib": Metric("gateway memory of an idle stream", "KiB"),
        "growth_kib": Metric("gateway memory gained while idle and busy", "KiB"),
        "cut": Metric("streams that broke", ""),
        "gateway_cpu_share": Metric("CPU of gateways, of one core", "%"),
        "delivered_share": Metric("events that busy streams got of those said", "%", "higher"),
    },
    "kills": {
        "gap_p50_ms": Metric("silence of a run whose runner was killed, median", "ms", noisy=True),
        "gap_max_ms": Metric("silence of a run whose runner was killed, longest", "ms", noisy=True),
        "runs_hit": Metric("runs that streamed on the killed runner", "", "higher"),
        "unfinished": Metric("runs that did not come to their end", ""),
    },
}

SHAPES: tuple[str, ...] = tuple(METRICS)

DOES: Mapping[str, str] = {
    "overhead": "runs of 10 and 100 tokens, in turns with the same graph alone",
    "watchers": "one run, many watchers",
    "runs": "many runs at once, one watcher each",
    "reconnects": "all streams are cut at once, again and again, while the run goes on",
    "approvals": "many questions are decided at once, each by two clicks",
    "idle": "streams on runs that wait for a person, some on a run that talks",
    "kills": "a runner is killed while runs stream",
}
