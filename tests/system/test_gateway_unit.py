"""The gateway's unit under a real systemd and polkit: an instance loaded at a request and unloaded when idle; one boot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from booted_machine import boot, environment_folders

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Boot a machine, serve through the gateway's unit in it, and return what was seen."""
    driver = [sys.executable, ROOT / "tests/system/gateway_driver.py", ROOT, Path(sys.prefix) / "bin"]
    return boot(tmp_path_factory.mktemp("lab"), driver, environment_folders())


def test_the_unit_starts_and_stops(facts: dict[str, Any]) -> None:
    """Active without a complaint of systemd-analyze, confined, ready for what sleeps; stopped with status 0."""
    unit = facts["set_up"]

    assert (unit["verify"], unit["started"], unit["state"]) == ([], "", "active")
    assert unit["status_text"] == "0 of 2 instances up; not loaded: qwen2; down: other"
    assert float(unit["exposure"].split(": ")[1].split()[0]) < 3.0
    assert (unit["readyz"]["status"], unit["readyz"]["json"]) == (200, {"status": "degraded"})
    assert facts["stopped"] == {"state": "inactive", "Result": "success", "ExecMainStatus": "0"}


def test_without_polkit_s_rule_the_operator_is_told_what_to_do(facts: dict[str, Any]) -> None:
    """The log has systemd's own words and the file to copy; clients are told that it could not be started; nothing runs."""
    seen = facts["not_allowed"]

    assert (seen["first"]["status"], seen["first"]["json"]["error"]["code"]) == (503, "loading")
    assert "Failed to start ascendd@qwen2.service: " in seen["failed"]["reason"]
    if facts["has_polkit"]:
        assert "50-ascendd-gateway.rules" in seen["failed"]["remedy"]
    assert (seen["then"]["status"], seen["then"]["retry_after"]) == (503, "30")
    assert "could not be started" in seen["then"]["json"]["error"]["message"]
    assert seen["instance"] == "inactive"


def test_with_it_an_instance_lives_while_it_is_asked_for(facts: dict[str, Any]) -> None:
    """503 `loading` until the loaded instance answers; idle it is stopped, well, and the next request has it loaded anew."""
    if not facts["has_polkit"]:
        pytest.skip("polkit is not installed here (Debian: polkitd)")
    seen = facts["on_demand"]
    print(f"answered {seen['loaded_s']:.1f} s after the first request")

    assert seen["statuses"] == [[503, "loading"], [200, None]]
    assert (seen["serving"], seen["loads"]) == ("active", 2)
    assert seen["idle"]["events"][0]["target"] == "qwen2"
    assert (seen["idle"]["state"], seen["idle"]["Result"], seen["idle"]["ExecMainStatus"]) == (
        "inactive",
        "success",
        "0",
    )
    assert seen["again"]["json"]["error"]["code"] == "loading"


def test_the_rule_allows_nothing_else(facts: dict[str, Any]) -> None:
    """As the gateway's user: no other unit, no other verb, no unit file."""
    if not facts["has_polkit"]:
        pytest.skip("polkit is not installed here (Debian: polkitd)")

    assert len(facts["forbidden"]) == 3
    for what, said in facts["forbidden"].items():
        assert "authentication required" in said, (what, said)
