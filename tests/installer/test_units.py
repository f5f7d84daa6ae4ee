"""Whatever unit the bundle holds is installed, proven, stopped, disabled and taken back; no list of names to keep."""

from __future__ import annotations

import shutil

import pytest

pytestmark = pytest.mark.system
ADDED = {
    "ascendd-added@.socket": "[Socket]\nListenStream=8000\n",
    "ascendd-added.service": "[Service]\nExecStart=/bin/true\n",
    "ascendd@.service.d/10-report.conf": "[Unit]\nOnFailure=ascendd-report@%n.service\n",
    "notes.txt": "no unit\n",
}


@pytest.fixture
def host_with_more(host, bundle, tmp_path):
    """A host whose bundle holds a socket, a service and a drop-in more than today's."""
    host.bundle = tmp_path / "more"
    shutil.copytree(bundle, host.bundle)
    for name, text in ADDED.items():
        (host.bundle / "systemd" / name).parent.mkdir(exist_ok=True)
        (host.bundle / "systemd" / name).write_text(text)
    return host


def test_every_unit_of_the_bundle_is_installed(host_with_more) -> None:
    """Sockets, services and drop-ins lie below /etc/systemd/system as in the bundle; what is no unit does not."""
    host_with_more.install()
    folder = host_with_more.root / "etc/systemd/system"

    units = {name for name in ADDED if name != "notes.txt"}
    assert {name: (folder / name).read_text() for name in units} == {name: ADDED[name] for name in units}
    assert not (folder / "notes.txt").exists()
    assert {"ascendd@.service", "ascendd.slice"} <= {path.name for path in folder.iterdir()}


def test_uninstall_stops_sockets_first_and_disables_templates(host_with_more) -> None:
    """A socket that outlived its service would start it again; a template takes the links of its instances along."""
    before = host_with_more.tree(with_state=False)
    host_with_more.install()
    assert host_with_more.run("uninstall", "--yes") == 0, host_with_more.output

    stop, disable = (
        next(call for call in host_with_more.calls if call.startswith(f"systemctl {verb} ")).split()
        for verb in ("stop", "disable")
    )
    assert stop[2:] == [
        "ascendd-added@*.socket",
        "ascendd@*.socket",
        "ascendd-added.service",
        *stop[5:-1],
        "ascendd@*.service",
    ]
    assert not [pattern for pattern in stop if pattern.endswith(".slice")]
    assert {"ascendd-added@.socket", "ascendd@.socket", "ascendd@.service", "ascendd-added.service"} <= set(disable)
    assert host_with_more.tree(with_state=False) == before
