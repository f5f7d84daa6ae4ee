"""Packages of the operating system: from the media alone, only what lacks, and only that is taken back."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.system
RPMS = {
    "lspci": "pciutils-3.9.0-1.oe2403.x86_64.rpm",
    "ifconfig": "net-tools-2.10-3.oe2403.x86_64.rpm",
    "python3_11": "python3-3.11.6-2.oe2403.x86_64.rpm",
}
DEBS = {
    "lspci": "pciutils_1%3a3.9.0-4_amd64.deb",
    "ifconfig": "net-tools_2.10-0.1_amd64.deb",
    "python3_11": "python3.11-venv_3.11.2-6_amd64.deb",
}


def make_bare(host, *, debian: bool = False) -> None:
    """Take Python and the driver's tools away, and put their packages onto the media."""
    host.take_tools("lspci", "ifconfig", "python3.11")
    if debian:
        host.write("etc/os-release", 'ID=debian\nPRETTY_NAME="Debian 12"\nVERSION_ID="12"\n')
    host.add_os_packages(**(DEBS if debian else RPMS))


def managers(host) -> list[str]:
    """What was asked of the package managers, without queries."""
    names = ("apt-get ", "dpkg ", "dnf ", "rpm --erase")
    return [call for call in host.calls if call.startswith(names)]


@pytest.mark.parametrize("debian", [False, True], ids=["openEuler", "Debian"])
def test_a_bare_host_gets_them_from_the_media(host, debian: bool) -> None:
    """Plan shows the one command, which asks no network; it runs before the driver; uninstall removes what it added."""
    make_bare(host, debian=debian)
    before = host.tree(with_state=False)
    assert host.run("plan", "--media", str(host.media)) == 0, host.output
    shown = [line for line in host.output.splitlines() if " install " in line and str(host.media / "os") in line]
    host.install()
    calls, ended = managers(host), host.tree()
    first = next(number for number, call in enumerate(host.calls) if call in calls)
    assert host.run("plan", "--media", str(host.media)) == 0
    assert host.output.endswith("nothing to do\n")
    assert host.apply() == 0
    assert host.tree() == ended
    assert host.run("uninstall", "--yes") == 0, host.output

    tool, offline = ("apt-get", "--no-download") if debian else ("dnf", "--disablerepo=*")
    assert len(shown) == 1
    assert (tool in shown[0], offline in shown[0].replace("'", "")) == (True, True)
    assert [call.split()[0] for call in calls] == (["dpkg", "apt-get"] if debian else ["dnf"])
    assert all(str(host.media / "os" / name) in calls[-1] for name in (DEBS if debian else RPMS).values())
    assert first < host.calls.index(host.vendor_calls[0])
    assert host.tree(with_state=False) == before


def test_what_is_there_is_left_alone(host) -> None:
    """A package that is installed in another version is not touched, neither by apply nor by uninstall."""
    host.take_tools("lspci")
    host.add_os_packages(**RPMS)
    host.write("var/lib/fake-packages", "net-tools ifconfig\n")
    host.install()
    (call,) = managers(host)
    assert host.run("uninstall", "--yes") == 0, host.output

    assert RPMS["ifconfig"] not in call
    assert RPMS["lspci"] in call
    assert (host.root / "var/lib/fake-packages").read_text() == "net-tools ifconfig\n"


def test_a_host_that_lacks_nothing_has_no_work(host) -> None:
    """Packages on the media are not installed where everything is there, whoever brought it."""
    host.add_os_packages(**RPMS)
    host.install()

    assert managers(host) == []


def test_a_compiler_comes_only_from_the_media(host) -> None:
    """What the driver may need is no reason to refuse; it is named, and installed where the media hold it."""
    assert host.run("plan", "--media", str(host.media)) == 0
    assert "dkms is not there, which the driver needs only where it has no module for this kernel" in host.output
    host.add_os_packages(dkms="dkms-3.0.11-1.noarch.rpm")
    host.install()

    assert [call.split("/")[-1] for call in managers(host)] == ["dkms-3.0.11-1.noarch.rpm"]


def test_a_cpu_host_needs_a_python_only(host) -> None:
    """Without a driver to install nobody asks for its tools."""
    host.take_tools("lspci", "ifconfig")

    assert host.run("plan", "--device", "cpu") == 0, host.output
    assert "there: Python 3.11 with venv\n" in host.output


def test_killed_inside_the_package_manager(make_host) -> None:
    """The package manager outlives the installer, `resume` waits for it, and the end is that of an undisturbed run."""
    undisturbed, host = make_host("undisturbed"), make_host("host")
    make_bare(undisturbed)
    undisturbed.install()
    make_bare(host)
    (host.folder / "kill-os-packages").touch()
    with pytest.raises(host.Killed):
        host.apply()
    assert host.run("resume", "--yes") == 75, host.output
    waited = "waiting for an earlier run" in host.output
    host.reboot()
    assert host.run("resume", "--yes") == 0, host.output

    assert waited
    assert host.tree() == undisturbed.tree()
    assert len(managers(host)) == 1


def test_refused_by_the_package_manager(make_host) -> None:
    """A package that cannot be installed is 71 before any package of the vendor, and `resume` does it again."""
    undisturbed, host = make_host("undisturbed"), make_host("host")
    for one in (undisturbed, host):
        make_bare(one, debian=True)
    undisturbed.install()
    (host.folder / "fail-os-packages").touch()
    assert host.apply() == 71
    assert "ended with status 100" in host.output
    assert host.vendor_calls == []
    (host.folder / "fail-os-packages").unlink()
    assert host.run("resume", "--yes") == 75, host.output
    host.reboot()
    assert host.run("resume", "--yes") == 0, host.output

    assert host.tree() == undisturbed.tree()


def test_packages_that_others_need_by_now_stay(host) -> None:
    """Uninstall goes on where the package manager keeps a package, and says which stay."""
    make_bare(host)
    host.install()
    (host.folder / "needs-packages").touch()

    assert host.run("uninstall", "--yes") == 0, host.output
    assert "net-tools, pciutils, python3 stay" in host.output
    assert (host.root / "usr/bin/lspci").exists()
