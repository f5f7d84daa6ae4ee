"""What several hosts need, one broken fact of a healthy fake host of a cluster at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import vendor_texts as texts
from examination import examine, replayer
from fake_machine import FakeMachine
from fault_cases import listen
from host_fault_cases import instance

from ascendd.host.cluster_facts import gather_facts
from ascendd.host.files import HostFiles
from ascendd.host.ray_nodes import ASK
from ascendd.preflight.check import Verdict
from ascendd.preflight.finding_texts import finding_in
from ascendd.preflight.language import Language, remedy_in

pytestmark = pytest.mark.system

CHECKS = ("cluster-network", "cluster-names", "cluster-ports", "cluster-chips", "cluster-agreement")
HEAD, WORKER, PORT = "10.0.0.1", "10.0.0.2", 6379
FACTS = {"ray": "2.60.0", "vllm": "0.32.0", "cann": "8.2.RC1", "tls": "off", "clock": "synchronised"}
TWICE = "another chip has its address 192.168.100.1, too"


def links(address: str = HEAD, flags: tuple[str, ...] = ("UP",), name: str = "eth1") -> str:
    """Return what `ip -json address` says."""
    loopback = {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]}
    return json.dumps(
        [loopback, {"ifname": name, "flags": list(flags), "addr_info": [{"local": address, "prefixlen": 24}]}]
    )


def joined(machine: FakeMachine, *, head: str = HEAD, **changes: dict[str, str | None]) -> None:
    """Have Ray's head answer with both hosts; `changes` by `head` and `worker` alter what one says of itself."""
    nodes = []
    for name, address in (("head", HEAD), ("worker", WORKER)):
        facts = {**FACTS, **changes.get(name, {})}
        nodes.append([address, True, {f"ascendd-{key}": value for key, value in facts.items() if value is not None}])
    machine.answer_text = f"NODES {json.dumps(nodes)}\n"


@pytest.fixture
def member(tmp_path: Path, acl_library: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """The head of a healthy cluster of two."""
    machine = FakeMachine(tmp_path / "host", acl_library)
    machine.remove("usr/bin/gcc")
    for tool in ("ip", "getent"):
        machine.tool(tool)
    machine.tool("python", "opt/vllm/bin")
    machine.write("proc/sys/kernel/hostname", "npu1\n")
    machine.answer("ip", "-json address", links())
    machine.answer("getent", "ahosts npu1", f"{HEAD}       STREAM npu1\n{HEAD}       DGRAM\n")
    machine.answer("systemctl", "is-active ascendd-ray@qwen2.service", "active\n")
    for chip in range(8):
        machine.answer("hccn_tool", f"-i {chip} -ip -g", f"ipaddr:192.168.100.{chip}\nnetmask:255.255.255.0\n")
    joined(machine)

    def asking(host: FakeMachine):
        run = replayer(host)

        def answer(argv, timeout_s, environ):
            outcome = run([*argv[:1], "version"] if ASK in argv else argv, timeout_s, environ)
            return outcome if ASK not in argv else type(outcome)(tuple(argv), 0, *host.answer_of_ray, 0.0)

        return answer

    monkeypatch.setattr("examination.replayer", asking)
    return machine


def looked_at(machine: FakeMachine, address: str = HEAD):
    """Return the results of the checks of a cluster."""
    machine.answer_of_ray = (machine.answer_text, "" if machine.answer_text else "InvalidAuthToken\n")
    sections = {
        "engine": {"backend": "vllm", "device": "npu", "vllm": {"venv": "/opt/vllm"}},
        "cluster": {"head": HEAD, "address": address, "interface": "eth1", "nodes": 2},
        "parallel": {"tensor_parallel_size": 8},
    }
    results = examine(machine, **instance(machine, **sections))
    return {name: results[name] for name in CHECKS}


def test_a_healthy_member_passes_all(member: FakeMachine) -> None:
    """Every check is made and says so in both languages; nothing is skipped."""
    results = looked_at(member)

    assert {name: result.verdict for name, result in results.items()} == dict.fromkeys(CHECKS, Verdict.PASS), results
    for name, result in results.items():
        assert finding_in(result.summary, name, Language.ZH) != result.summary


def silent(machine: FakeMachine) -> None:
    """Have the head turn the question away."""
    machine.answer_text = ""


def alone(machine: FakeMachine) -> None:
    """Have the head know itself only."""
    machine.answer_text = f'NODES [["{HEAD}", true, {{"ascendd-ray": "2.60.0"}}]]\n'


Damage = Callable[[FakeMachine], object]
CASES: dict[str, tuple[str, str, str, str, str, Damage]] = {
    "no such interface": (
        "cluster-network", "fail", "ASD-C04", "there is no interface eth1", "differ from host to host",
        lambda m: m.answer("ip", "-json address", links(name="eth0"))),
    "an interface that is down": (
        "cluster-network", "fail", "ASD-C04", "eth1 is down", "come up at boot",
        lambda m: m.answer("ip", "-json address", links(flags=("BROADCAST",)))),
    "an address that is not here": (
        "cluster-network", "fail", "ASD-C04", "no interface has the address 10.0.0.1", "cluster.address",
        lambda m: m.answer("ip", "-json address", links("10.0.0.9"))),
    "a variable for another interface": (
        "cluster-network", "warn", "ASD-C04", "GLOO_SOCKET_IFNAME is eth0, and the cluster is on eth1", "cann.env",
        lambda m: m.unit("qwen2", Environment="GLOO_SOCKET_IFNAME=eth0")),
    "a name that is nobody's": (
        "cluster-names", "fail", "ASD-H01", "this host's name npu1 does not resolve", "/etc/hosts",
        lambda m: m.answer("getent", "ahosts npu1", "", 2)),
    "the name of Debian's installer": (
        "cluster-names", "fail", "ASD-H01", "npu1 resolves to 127.0.1.1, where no other host", "127.0.1.1",
        lambda m: m.answer("getent", "ahosts npu1", "127.0.1.1       STREAM npu1\n")),
    "a name in another network": (
        "cluster-names", "warn", "ASD-H01", "resolves to 172.16.0.4, not to cluster.address 10.0.0.1", "10.0.0.1 npu1",
        lambda m: m.answer("getent", "ahosts npu1", "172.16.0.4      STREAM npu1\n")),
    "a chip without an address": (
        "cluster-chips", "fail", "ASD-G41", "chip 3: has no address", "/etc/hccn.conf",
        lambda m: m.replay("hccn_tool", "-i 3 -ip -g", "abn-hccn-ip-not-preset.txt")),
    "two chips with one address": (
        "cluster-chips", "fail", "ASD-G41", TWICE, "another address",
        lambda m: m.answer("hccn_tool", "-i 2 -ip -g", "ipaddr:192.168.100.1\nnetmask:255.255.255.0\n")),
    "a link that is down": (
        "cluster-chips", "fail", "ASD-G41", "chip 3: link DOWN", "does not start without",
        lambda m: m.replay("hccn_tool", "-i 3 -link -g", "abn-hccn-link-down.txt")),
    "a network that does not answer": (
        "cluster-chips", "fail", "ASD-G41", "chip 2: network Unreachable", "netdetect",
        lambda m: m.replay("hccn_tool", "-i 2 -net_health -g", "abn-hccn-net-health-unreachable.txt")),
    "an address that cannot be read": (
        "cluster-chips", "error", "ASD-G41", "chip 6: hccn_tool said: Command execute failed!", "by hand",
        lambda m: m.answer("hccn_tool", "-i 6 -ip -g", texts.recording("abn-hccn-command-failed.txt"), 1)),
    "another vLLM": (
        "cluster-agreement", "fail", "ASD-H01", "vllm differs: 0.32.0 on 10.0.0.1; 0.31.0 on 10.0.0.2", "same versions",
        lambda m: joined(m, worker={"vllm": "0.31.0"})),
    "TLS on one host": (
        "cluster-agreement", "fail", "ASD-G46", "TLS between chips differs: off on 10.0.0.1; on on 10.0.0.2", "alike",
        lambda m: joined(m, worker={"tls": "on"})),
    "a package that one lacks": (
        "cluster-agreement", "warn", "ASD-H01", "cann is not known everywhere: 8.2.RC1 on 10.0.0.1", "missing there",
        lambda m: joined(m, worker={"cann": None})),
    "a clock that nobody keeps": (
        "cluster-agreement", "warn", "ASD-H01", "the clock of 10.0.0.2 is not synchronised", "chronyd",
        lambda m: joined(m, worker={"clock": "not-synchronised"})),
    "a host that has not joined": (
        "cluster-agreement", "warn", "ASD-H01", "1 of 2 hosts joined", "cluster join", alone),
    "a head that says no": (
        "cluster-agreement", "warn", "ASD-H01", "were not compared: InvalidAuthToken", "cluster join", silent),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_broken_fact_is_found_by_one_check(member: FakeMachine, name: str) -> None:
    """Check, verdict, runbook, words of finding and remedy, in both languages; the other checks pass."""
    check, verdict, code, says, remedy, damage = CASES[name]
    damage(member)

    results = looked_at(member)

    found = results[check]
    assert (found.verdict.value, found.remedy.runbook) == (verdict, code), found
    assert says in found.summary
    assert remedy in found.remedy.text
    assert finding_in(found.summary, check, Language.ZH) != found.summary
    assert remedy_in(found.remedy.text, Language.ZH) != found.remedy.text
    assert {one for one, result in results.items() if result.verdict is not Verdict.PASS} == {check}


def test_a_port_that_somebody_has(member: FakeMachine) -> None:
    """On the head a listener is Ray's where the unit runs, and in its way where it does not."""
    listen(member, PORT)
    assert "Ray's head listens on port 6379" in looked_at(member)["cluster-ports"].summary

    member.answer("systemctl", "is-active ascendd-ray@qwen2.service", "inactive\n", 3)

    found = looked_at(member)["cluster-ports"]
    assert (found.verdict, found.remedy.runbook) == (Verdict.FAIL, "ASD-H02")
    assert "cluster.port 6379 has a listener already" in found.summary


def test_a_worker_has_to_reach_the_head(member: FakeMachine) -> None:
    """It fails with the reason, and passes once the head answers."""
    member.answer("ip", "-json address", links(WORKER))
    member.answer("getent", "ahosts npu1", f"{WORKER}       STREAM npu1\n")
    found = looked_at(member, WORKER)["cluster-ports"]
    assert (found.verdict, found.remedy.runbook) == (Verdict.FAIL, "ASD-H02")
    assert "the head 10.0.0.1 does not answer on port 6379: Connection refused" in found.summary

    member.facts["reachable"] = [f"{HEAD}:{PORT}"]
    member.mark()

    assert looked_at(member, WORKER)["cluster-ports"].verdict is Verdict.PASS


def test_a_host_gathers_what_it_tells_the_others(member: FakeMachine) -> None:
    """Versions of its packages and of the vendor's parts, the switch of its chips, its clock and its model."""
    member.package("vllm_ascend", "0.18.0", "opt/vllm/lib/python3.11/site-packages")
    member.answer("timedatectl", "show --property=NTPSynchronized", "NTPSynchronized=no\n")
    member.write("m/config.json", "{}")

    facts = gather_facts(HostFiles(str(member.root)), replayer(member), member.environ, "/opt/vllm", "/m")

    assert (facts["vllm-ascend"], facts["python"], facts["cann"]) == ("0.18.0", "3.11", "8.2.RC1")
    assert (facts["tls"], facts["clock"], len(facts["model"])) == ("off", "not-synchronised", 16)
    assert {"driver", "firmware"} <= facts.keys()
