"""The shipped Prometheus rules and Grafana dashboards speak of what the daemon exposes, and the alerts fire and clear."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ascendd.telemetry.compatibility import ALIASES, COMMON_LABELS
from ascendd.telemetry.metric_spec import MetricKind
from ascendd.telemetry.metrics import SPECS

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging/prometheus/ascendd-alerts.yml"
RULE_TESTS = ROOT / "tests/fixtures/alerts.test.yml"
RECORDED_RUN = ROOT / "tests/fixtures/recorded_run.test.yml"
DASHBOARDS = sorted((ROOT / "packaging/grafana").glob("*.json"))
TARGET_LABELS = {"job", "instance"}
RECORDED = {
    rule["record"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
}


def exposed() -> dict[str, set[str]]:
    """Return the labels of each series that the page can have, by its name."""
    labels = {spec.name: (spec.kind, set(spec.labels)) for spec in SPECS.values()}
    labels |= {alias.name: (SPECS[alias.source].kind, {*COMMON_LABELS, *alias.labels}) for alias in ALIASES}
    series: dict[str, set[str]] = {"up": set()}
    for name, (kind, own) in labels.items():
        if kind is MetricKind.HISTOGRAM:
            series |= {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            series[name] = own
    return series


def unknown_words(expression: str) -> set[str]:
    """Return the metrics and labels in a PromQL `expression` that nothing exposes."""
    series = exposed()
    names = set(re.findall(r"\b(?:up\b|ascendd[_:][\w:]+|vllm:\w+|npu_\w+|machine_\w+)", expression))
    missing = {name for name in names if name not in series and name not in RECORDED}
    known = TARGET_LABELS.union(*(series.get(name, set()) for name in names))
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression):
        used |= set(re.findall(r"\w+", group))
    return missing | {f"label {label}" for label in used - known}


def rule_expressions() -> list[tuple[str, str]]:
    """Return (name, expression) of every rule that is shipped."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [(rule.get("alert", rule.get("record")), rule["expr"]) for group in groups for rule in group["rules"]]


def panel_expressions() -> list[tuple[str, str]]:
    """Return (dashboard and panel, expression) of every line of every dashboard."""
    return [
        (f"{path.stem}: {panel['title']}", target["expr"])
        for path in DASHBOARDS
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        for target in panel["targets"]
    ]


@pytest.mark.parametrize(("name", "expression"), rule_expressions())
def test_a_rule_names_what_the_daemon_exposes(name: str, expression: str) -> None:
    """Every metric and label of a rule is on the page, or is recorded by another rule."""
    assert unknown_words(expression) == set(), name


@pytest.mark.parametrize(("name", "expression"), panel_expressions())
def test_a_panel_names_what_the_daemon_exposes(name: str, expression: str) -> None:
    """Every metric and label of a dashboard's panel is on the page."""
    assert unknown_words(expression) == set(), name


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("ascendd_engine_kv_usage > 1", {"ascendd_engine_kv_usage"}),
        ('ascendd_child_up{kind="api"}', {"label kind"}),
        ("sum by (tenant) (vllm:num_requests_running)", {"label tenant"}),
        ("rate(ascendd_request_duration_seconds[5m])", {"ascendd_request_duration_seconds"}),
    ],
)
def test_a_wrong_name_is_found(expression: str, found: set[str]) -> None:
    """A metric or label that nothing exposes is told by name, a histogram without its suffix among them."""
    assert unknown_words(expression) == found


def test_every_alert_tells_what_to_do() -> None:
    """Each alert has a severity, a summary with the instance, and an action."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]

    assert len(alerts) >= 13
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]
        assert "{{ $labels.instance }}" in alert["annotations"]["summary"], alert["alert"]
        assert len(alert["annotations"]["action"]) > 20, alert["alert"]


def test_dashboards_are_what_their_source_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed JSON is the output of packaging/dashboards.py, file by file."""
    found = importlib.util.spec_from_file_location("dashboards", ROOT / "packaging/dashboards.py")
    assert found is not None
    assert found.loader is not None
    source = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "dashboards", source)  # dataclasses look their module up there
    found.loader.exec_module(source)

    source.main(tmp_path)

    assert {path.name: path.read_text() for path in DASHBOARDS} == {
        path.name: path.read_text() for path in tmp_path.iterdir()
    }


def promtool(*arguments: str) -> str:
    """Run promtool; return what it prints, and fail with that if it does."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed; on Debian: apt install prometheus")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_rules_and_panels(tmp_path: Path) -> None:
    """Every rule and, with Grafana's variables filled in, every panel is valid PromQL."""
    panels = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "1m")}
        for number, (_, expr) in enumerate(panel_expressions())
    ]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}))

    promtool("check", "rules", str(RULES), str(tmp_path / "panels.yml"))

    assert len(panels) > 30


def test_alerts_fire_and_clear_with_their_durations() -> None:
    """Every alert fires on the series made for it after its duration and not before, and is gone when they recover."""
    tested = {
        case["alertname"]
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
    }

    promtool("test", "rules", str(RULE_TESTS))

    assert tested == {name for name, _ in rule_expressions() if name.startswith("Ascendd")}


def test_alerts_do_on_a_recorded_run_what_they_did_then() -> None:
    """On the series of a real daemon under load the queue's alert fires after its 2 minutes and clears, no other fires."""
    text = RECORDED_RUN.read_text()
    fired = {
        case["alertname"]
        for test in yaml.safe_load(text)["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }

    promtool("test", "rules", str(RECORDED_RUN))

    assert fired == {"AscenddQueueLong"}
    assert "ascendd_requests_total" in text
