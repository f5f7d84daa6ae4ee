"""kill -9 at every save of the state and in the middle of every vendor package: the end is that of an undisturbed run."""

from __future__ import annotations

import fcntl
import os

import pytest

pytestmark = pytest.mark.system
KINDS = ("driver", "firmware", "toolkit", "ops", "nnal")


def killed(host, half: str, kill_at: int) -> bool:
    """Install with one death, at a save of the half before (`apply`) or after the reboot; tell whether the death came."""
    died = False

    def get_to(status: int, verb: str, kill_at: int) -> None:
        nonlocal died
        options = ("--media", str(host.media)) if verb == "apply" else ()
        try:
            assert host.run(verb, "--yes", *options, kill_at=kill_at) == status, host.output
        except host.Killed:
            died = True
            get_to(status, "resume", 0)

    get_to(75, "apply", kill_at if half == "apply" else 0)
    host.reboot()
    get_to(0, "resume", kill_at if half == "resume" else 0)
    return died


def lacking(host):
    """The same host with work for the step of the operating system's packages."""
    host.take_tools("lspci", "ifconfig", "python3.11")
    host.add_os_packages(
        lspci="pciutils-3.9.0-1.oe2403.x86_64.rpm",
        ifconfig="net-tools-2.10-3.oe2403.x86_64.rpm",
        python3_11="python3-3.11.6-2.oe2403.x86_64.rpm",
    )
    return host


def kill_at_saves(make_host, half: str, stride: int) -> int:
    """Kill one run at each of these saves and compare its end with that of a run without a death; return how many."""
    undisturbed = make_host("undisturbed")
    undisturbed.install()
    assert any(call.startswith("dnf install") for call in undisturbed.calls) == ("os" in os.listdir(undisturbed.media))
    wanted = undisturbed.tree()
    num_tried = 0
    for kill_at in range(1, 1000, stride):
        host = make_host(f"killed-{kill_at}")
        if not killed(host, half, kill_at):
            break
        num_tried += 1
        assert host.tree() == wanted, f"killed at save {kill_at}"
    return num_tried


@pytest.mark.timeout(600)  # Dozens of runs in a row: seconds on a quiet machine.
@pytest.mark.parametrize("half", ["apply", "resume"])
def test_killed_at_some_saves(make_host, half: str) -> None:
    """Wherever the run dies, `resume` reaches the same tree and the same state; every seventh save."""
    assert kill_at_saves(make_host, half, 7) >= 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("half", ["apply", "resume"])
@pytest.mark.parametrize("is_bare", [False, True], ids=["equipped", "bare"])
def test_killed_at_every_save(make_host, half: str, is_bare: bool) -> None:
    """The same at every save of the state, also where packages of the operating system are installed on the way."""
    make = (lambda name: lacking(make_host(name))) if is_bare else make_host

    assert kill_at_saves(make, half, 1) >= 15


@pytest.mark.parametrize("kind", KINDS)
def test_killed_inside_a_vendor_package(make_host, kind: str) -> None:
    """The package outlives the installer, `resume` waits for it and never runs a second one beside it."""
    undisturbed, host = make_host("undisturbed"), make_host("host")
    undisturbed.install()
    (host.folder / f"kill-{kind}").touch()

    verb = host.apply
    if kind in ("driver", "firmware"):
        with pytest.raises(host.Killed):
            verb()
        assert host.run("resume", "--yes") == 75, host.output
        waited = "waiting for an earlier run" in host.output
        host.reboot()
        assert host.run("resume", "--yes") == 0, host.output
    else:
        assert verb() == 75
        host.reboot()
        with pytest.raises(host.Killed):
            host.run("resume", "--yes")
        assert host.run("resume", "--yes") == 0, host.output
        waited = "waiting for an earlier run" in host.output

    assert waited
    assert host.tree() == undisturbed.tree()


@pytest.mark.parametrize("kind", KINDS)
def test_failed_half_way(make_host, kind: str) -> None:
    """A package that fails half-way is 71 with its name and the log; once the cause is gone `resume` does it again."""
    undisturbed, host = make_host("undisturbed"), make_host("host")
    undisturbed.install()
    (host.folder / f"fail-{kind}").touch()

    status = host.apply()
    if status == 75:
        host.reboot()
        status = host.run("resume", "--yes")
    assert status == 71
    assert "ended with status 1" in host.output
    (host.folder / f"fail-{kind}").unlink()
    if host.run("resume", "--yes") == 75:
        host.reboot()
        assert host.run("resume", "--yes") == 0, host.output

    assert host.tree() == undisturbed.tree()


def test_resume_before_the_reboot(host) -> None:
    """Without a reboot `resume` stops at the barrier again, however often."""
    assert host.apply() == 75

    assert [host.run("resume", "--yes"), host.run("resume", "--yes")] == [75, 75]
    assert not (host.root / "usr/local/Ascend/cann").exists()


def test_two_runs_at_once(host) -> None:
    """While the lock is held, apply is refused with 69 and nothing changes."""
    folder = host.root / "var/lib/ascendd-installer"
    folder.mkdir(parents=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    before = host.tree()
    try:
        assert host.apply() == 69  # It does not wait: this lock is not given back before it ends.
    finally:
        os.close(descriptor)

    assert "another run of the installer" in host.output
    assert host.tree() == before
