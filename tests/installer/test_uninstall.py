"""Uninstall gives the host back as it was."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.system


def test_bare_host_comes_back(host) -> None:
    """What the installer made is gone, and every file that existed has its old bytes and mode."""
    host.write("etc/tmpfiles.d/ascendd.conf", "# the operator's own\n")
    host.write("etc/systemd/system/ascendd.slice", "[Slice]\nMemoryMax=1G\n")
    (host.root / "etc/systemd/system/ascendd.slice").chmod(0o600)
    before = host.tree(with_state=False)
    host.install()
    assert host.tree(with_state=False) != before
    assert host.run("uninstall", "--yes") == 0, host.output

    assert host.tree(with_state=False) == before
    assert "reboot the host" in host.output
    assert not (host.root / "var/lib/ascendd-installer").exists()


@pytest.mark.parametrize("kill_at", [1, 4, 9, 16, 23, 30])
def test_killed_uninstall_goes_on(host, kill_at: int) -> None:
    """An uninstall that dies is gone on with by `resume`, to the same end."""
    before = host.tree(with_state=False)
    host.install()
    try:
        status = host.run("uninstall", "--yes", kill_at=kill_at)
    except host.Killed:
        status = host.run("resume", "--yes")

    assert status == 0, host.output
    assert host.tree(with_state=False) == before


def test_half_an_install_is_taken_back(host) -> None:
    """A run that stopped at the reboot can be uninstalled instead of resumed."""
    before = host.tree(with_state=False)
    assert host.apply() == 75
    assert host.run("uninstall", "--yes") == 0, host.output

    assert host.tree(with_state=False) == before


def test_operators_files_stay(host) -> None:
    """Models, keys and instances that came later are not removed."""
    host.install()
    host.write("etc/ascendd/instances/qwen2.yaml", "model: {path: /m}\n")
    host.write("var/lib/ascendd/models/m/config.json", "{}")
    assert host.run("uninstall", "--yes") == 0, host.output

    assert (host.root / "etc/ascendd/instances/qwen2.yaml").exists()
    assert (host.root / "var/lib/ascendd/models/m/config.json").exists()
    assert not (host.root / "etc/ascendd/keys").exists()


@pytest.mark.parametrize("has_systemd", [True, False], ids=["booted", "image"])
def test_links_of_enabled_instances_go(host, has_systemd: bool) -> None:
    """No link of an enabled unit or instance leads nowhere afterwards; links of others, and their folders, stay."""
    wants = host.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "cron.service").symlink_to("/lib/systemd/system/cron.service")
    if not has_systemd:
        (host.root / "run/systemd/system").rmdir()
    before = host.tree(with_state=False)
    host.install()
    for folder, name, unit in (
        ("multi-user.target.wants", "ascendd@qwen2.service", "ascendd@.service"),
        ("multi-user.target.wants", "ascendd-gateway.service", "ascendd-gateway.service"),
        ("sockets.target.wants", "ascendd@qwen2.socket", "ascendd@.socket"),
    ):
        (host.root / "etc/systemd/system" / folder).mkdir(exist_ok=True)
        (host.root / "etc/systemd/system" / folder / name).symlink_to(f"/etc/systemd/system/{unit}")
    assert host.run("uninstall", "--yes") == 0, host.output

    assert host.tree(with_state=False) == before


def test_nothing_to_uninstall(host) -> None:
    """On a host that it never touched uninstall says so and leaves no trace."""
    before = host.tree()

    assert host.run("uninstall", "--yes") == 0
    assert "nothing to uninstall" in host.output
    assert host.tree() == before
