"""Board, rules and page name only metrics that exist; no label grows with users or runs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from common.metrics import Described
from deploy.readme import METRICS_PAGE, all_metrics, rewritten_metrics
from gateway.metrics import Metrics as Gateway
from runner.metrics import Metrics as Runner

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
BOARD = DEPLOY / "grafana" / "steadyrun.json"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
# every value of these is a name in the code, or of a route
BOUNDED = {
    "reason",
    "outcome",
    "code",
    "status",
    "state",
    "server",
    "source",
    "limit",
    "method",
    "route",
}
GIVEN = {"job", "instance", "le"}  # by Prometheus
PROCESS = ("process_resident_memory_bytes", "process_cpu_seconds_total")


def series() -> dict[str, Described]:
    found = {m.name + suffix: m for m in all_metrics() for suffix in SUFFIXES[m.kind]}
    return found | {name: Described(name, "gauge", "of Prometheus' client", ()) for name in PROCESS}


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(BOARD.read_text())["panels"]
    return found


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in panels():
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "1m")


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics of an expression with the labels they are matched by."""
    found = re.findall(r"\b((?:steadyrun|process)_\w+)(?:\{([^}]*)\})?", expression)
    return [(name, set(re.findall(r"(\w+)\s*[=!]", matchers))) for name, matchers in found]


def grouped(expression: str) -> set[str]:
    lists = re.findall(r"\b(?:by|without)\s*\(([^)]*)\)", expression)
    return {label.strip() for labels in lists for label in labels.split(",")}


def test_every_metric_is_named_by_convention() -> None:
    for metric in all_metrics():
        assert re.fullmatch(r"steadyrun_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith("_seconds")
        assert metric.text[0].islower() or metric.text[0].isdigit()


def test_no_label_grows_with_users_runs_or_paths() -> None:
    assert {label for metric in all_metrics() for label in metric.labels} <= BOUNDED


def test_no_metric_is_made_twice() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(names) == len(set(names))


def test_the_page_of_metrics_is_made_from_the_code() -> None:
    """Renew it with `python -m deploy.readme`."""
    text = METRICS_PAGE.read_text(encoding="utf-8")
    assert rewritten_metrics(text) == text


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_board_and_rules_ask_for_metrics_and_labels_that_exist(expression: str) -> None:
    promql_parser.parse(expression)
    known = series()
    found = selectors(expression)
    assert found, "an expression without a metric of ours"
    allowed = set(GIVEN)
    for name, labels in found:
        assert name in known, name
        assert labels <= {*known[name].labels, *GIVEN}, name
        allowed |= set(known[name].labels)
    assert grouped(expression) <= allowed


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    assert selectors('rate(steadyrun_nothing_total{reason="x"}[5m])') == [
        ("steadyrun_nothing_total", {"reason"})
    ]
    assert "steadyrun_nothing_total" not in series()


def test_every_rule_says_what_it_means_and_what_to_do() -> None:
    for rule in rules():
        assert re.fullmatch(r"Steadyrun[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert f"### {rule['alert']}" in (DEPLOY / "docs" / "drill.md").read_text()


def test_the_rules_cover_what_can_go_wrong_unseen() -> None:
    covered = {name for rule in rules() for name, _ in selectors(rule["expr"])}
    assert covered >= {
        "steadyrun_queue_oldest_seconds",
        "steadyrun_runs_overdue",
        "steadyrun_runner_leases_lost_total",
        "steadyrun_runner_publisher_lag_seconds",
        "steadyrun_runner_archive_behind_seconds",
        "steadyrun_interrupts_oldest_pending_seconds",
        "steadyrun_gateway_pubsub_healthy",
        "steadyrun_gateway_server_up",
        "steadyrun_runner_effects_total",
    }


def test_what_an_alert_counts_begins_at_zero_since_a_series_that_appears_has_not_risen() -> None:
    fresh = (Gateway().render() + Runner().render()).decode()
    counted = re.findall(r"increase\((\w+)", " ".join(rule["expr"] for rule in rules()))
    assert counted
    assert [
        name for name in counted if not re.search(rf"^{name}(\{{.*\}})? 0\.0$", fresh, re.M)
    ] == []


def test_every_panel_has_a_title_a_unit_and_a_place_of_its_own() -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["title"]
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & places, panel["title"]
        places |= cells
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
