"""PCI ids, device nodes, version files, memory limits, libraries and the unit's environment, from files of a host."""

import pytest

from ascendd.errors import ProbeError
from ascendd.host.command import CommandOutcome
from ascendd.host.device_nodes import read_device_nodes
from ascendd.host.libraries import find_library
from ascendd.host.memory import read_memory
from ascendd.host.pci import find_pci_npus
from ascendd.host.service_environment import parse_environment_file, read_service_environment
from ascendd.host.version_files import read_cann, read_driver, read_firmware

MEMINFO = "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   33554432 kB\n"


def pci(address: str, device: str, subsystem: str = "0x0000", vendor: str = "0x19e5") -> dict[str, str]:
    """Make the sysfs files of one function."""
    base = f"/sys/bus/pci/devices/{address}"
    return {
        f"{base}/vendor": vendor + "\n",
        f"{base}/device": device + "\n",
        f"{base}/subsystem_device": subsystem + "\n",
    }


def test_only_npu_ids_count_on_the_bus(host) -> None:
    """Kunpeng accelerators have the same vendor, other vendors the same device id; neither is an NPU."""
    files = host({
        **pci("0000:01:00.0", "0xd802"), **pci("0000:02:00.0", "0xD803"), **pci("0000:75:00.0", "0xa255"),
        **pci("0000:76:00.0", "0xd802", vendor="0x10de"),
    })  # fmt: skip

    found = find_pci_npus(files)

    assert [(npu.address, npu.family, npu.num_chips) for npu in found] == [
        ("0000:01:00.0", "A2", 1),
        ("0000:02:00.0", "A3", 1),
    ]


def test_a_duo_card_has_two_chips_behind_one_function(host) -> None:
    """The subsystem id tells a 300I Duo from a 300I Pro."""
    files = host({**pci("0000:01:00.0", "0xd500", "0x0110"), **pci("0000:02:00.0", "0xd500", "0x0100")})

    assert [npu.num_chips for npu in find_pci_npus(files)] == [2, 1]


@pytest.mark.parametrize(
    ("families", "expected"), [(["A2"], ("devmm_svm", "hisi_hdc")), (["950"], ("hisi_hdc",)), (["310B"], ()), ([], ())]
)
def test_nodes_are_expected_by_chip_family(host, families: list[str], expected: tuple[str, ...]) -> None:
    """Each family has its own set; virtual NPUs do not count as chips."""
    nodes = read_device_nodes(host({"/dev/davinci3": "", "/dev/vdavinci9": "", "/dev/davinci_manager": ""}), families)

    assert (nodes.chips, nodes.missing_required, nodes.missing_expected) == ((3,), (), expected)


def test_a_node_that_cannot_be_opened_is_reported_with_the_reason(host) -> None:
    """The test is to open for reading and writing, not to look at the group."""
    nodes = read_device_nodes(host({"/dev/davinci0/x": ""}), ["A2"])

    assert nodes.not_openable == (("davinci0", "Is a directory"),)
    assert nodes.missing_required == ("davinci_manager",)


def test_driver_and_firmware_are_read_where_the_installation_file_says(host) -> None:
    """/etc/ascend_install.info moves the root; the installer's log tells the chip generation of the last package."""
    files = host({
        "/etc/ascend_install.info": "UserGroup=HwHiAiUser\nDriver_Install_Path_Param=/opt/npu\nFirmware_Install_Path_Param=/opt/npu\nDriver_Install_Status=part\n",
        "/opt/npu/driver/version.info": "Version=24.1.rc3\nInnerversion=V100R001C19SPC001B124\ncompatible_version=[V100R001C13],[V100R001C19]\ncompatible_version_fw=[7.0.0,7.5.99]\n",
        "/opt/npu/firmware/version.info": "Version=7.5.0.1.129\ncompatible_version_drv=[24.1,24.1.]\n",
        "/var/log/ascend_seclog/operation.log": "Ascend-hdk-910-npu-firmware_7.1.0.3.220.run\nAscend-hdk-910b-npu-firmware_7.5.0.1.129.run\n",
    })  # fmt: skip

    driver, firmware = read_driver(files), read_firmware(files)

    assert (driver.version, driver.compatible_versions, driver.is_complete) == (
        "24.1.rc3",
        ("V100R001C13", "V100R001C19"),
        False,
    )
    assert (firmware.version, firmware.compatible_drivers, firmware.generation) == (
        "7.5.0.1.129",
        "[24.1,24.1.]",
        "910b",
    )


def test_both_layouts_of_cann_are_found_and_links_count_once(host, tmp_path) -> None:
    """Up to 8.3 CANN is below ascend-toolkit/latest, later below cann; what the environment names comes first."""
    base = "/usr/local/Ascend"
    files = host({
        f"{base}/cann-8.5.0/aarch64-linux/ascend_toolkit_install.info": "version=8.5.0\ninnerversion=V100R001C25SPC001B212\n",
        f"{base}/cann-8.5.0/aarch64-linux/ascend_ops_install.info": "package_name=Ascend-cann-910b-ops\n",
        "/opt/old/x86_64-linux/ascend_toolkit_install.info": 'version="7.0.0"\n',
    })  # fmt: skip
    (tmp_path / "usr/local/Ascend/cann").symlink_to("cann-8.5.0")
    (tmp_path / "usr/local/Ascend/ascend-toolkit").mkdir()
    (tmp_path / "usr/local/Ascend/ascend-toolkit/latest").symlink_to("../cann")

    usual, named = read_cann(files, {}), read_cann(files, {"ASCEND_HOME_PATH": "/opt/old"})

    assert [(cann.root, cann.version, cann.ops_chips) for cann in usual] == [(f"{base}/cann", "8.5.0", ("910b",))]
    assert [cann.version for cann in named] == ["7.0.0", "8.5.0"]


def test_an_image_with_components_only_tells_cann_from_its_configuration(host) -> None:
    """version.cfg holds [component:CANN] where the toolkit's own file was left out."""
    files = host({"/opt/cann/version.cfg": "# header\nruntime_running_version=[7.6.0.1.220:8.0.0]\n"})

    assert read_cann(files, {"ASCEND_HOME_PATH": "/opt/cann"})[0].version == "8.0.0"


@pytest.mark.parametrize(
    ("files", "limit", "available"),
    [
        ({}, None, None),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n"}, None, None),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/memory.max": "1000\n", "/sys/fs/cgroup/a/memory.current": "700\n",
                "/sys/fs/cgroup/a/memory.stat": "anon 100\ninactive_file 200\n",
            },
            1000, 500,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/m\n", "/sys/fs/cgroup/memory/m/memory.limit_in_bytes": "5000\n",
                "/sys/fs/cgroup/memory/m/memory.usage_in_bytes": "1000\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            5000, 4000,
        ),
    ],
)  # fmt: skip
def test_the_tightest_control_group_limits_memory(host, files: dict[str, str], limit: int, available: int) -> None:
    """Both versions of control groups; a parent's limit counts; page cache that can be dropped is available."""
    memory = read_memory(host({"/proc/meminfo": MEMINFO, **files}))

    assert (memory.cgroup_limit_bytes, memory.cgroup_available_bytes) == (limit, available)
    assert memory.usable_bytes == (32 * 2**30 if available is None else available)
    assert memory.ceiling_bytes == (64 * 2**30 if limit is None else limit)


def test_memory_that_cannot_be_read_is_a_probe_error(host) -> None:
    """No number is invented."""
    with pytest.raises(ProbeError, match="MemAvailable"):
        read_memory(host({"/proc/meminfo": "MemTotal: 1 kB\n"}))


def test_a_library_is_searched_as_the_linker_does(host) -> None:
    """LD_LIBRARY_PATH, then ld.so.conf; a stub before the real one is told, a copy off the path too."""
    files = host({"/opt/devlib/liba.so": "", "/opt/real/liba.so": "", "/usr/local/Ascend/cann/lib64/libb.so": "",
                  "/etc/ld.so.conf.d/npu.conf": "# driver\n/opt/real\n"})  # fmt: skip
    environ = {"LD_LIBRARY_PATH": "/opt/devlib:"}

    stubbed, off_path = find_library("liba.so", files, environ), find_library("libb.so", files, environ)

    assert (stubbed.found, stubbed.stub_first) == ("/opt/real/liba.so", "/opt/devlib/liba.so")
    assert (off_path.found, off_path.elsewhere) == (None, "/usr/local/Ascend/cann/lib64/libb.so")


def test_an_environment_file_is_read_by_systemds_rules() -> None:
    """Comments, quotes and joined lines; what is no assignment is passed over."""
    text = "# c\n; c\nA=1\nB=\"two words\"\nC='x'\nLONG=a:\\\nb\nnot an assignment\n9X=no\n"

    assert parse_environment_file(text) == {"A": "1", "B": "two words", "C": "x", "LONG": "a:b"}


def test_the_units_environment_is_merged_in_systemds_order(host) -> None:
    """Files override Environment=, UnsetEnvironment= has the last word, a missing file that is required is reported."""
    shown = (
        'LoadState=loaded\nActiveState=active\nControlGroup=/system.slice/x\nMemoryMax=1024\nEnvironment=A=1 "B=two words"\n'
        "EnvironmentFiles=/etc/a.env (ignore_errors=no)\nEnvironmentFiles=/etc/gone.env (ignore_errors=no)\nUnsetEnvironment=C\n"
    )
    files = host({"/etc/a.env": "A=2\nC=3\n"})

    def run(argv, timeout_s, environ):
        assert argv[:3] == ["systemctl", "show", "ascendd@qwen2.service"]
        return CommandOutcome(tuple(argv), 0, shown, "", 0.0)

    service = read_service_environment(files, run, {"SHELL_ONLY": "1"}, "qwen2")

    assert {key: service.variables.get(key) for key in ("A", "B", "C", "SHELL_ONLY")} == {
        "A": "2",
        "B": "two words",
        "C": None,
        "SHELL_ONLY": None,
    }
    assert (service.missing_files, service.is_active, service.memory_max_bytes) == (("/etc/gone.env",), True, 1024)
    assert service.control_group == "/system.slice/x"


def test_without_systemd_the_shells_environment_is_read_and_said_so(host) -> None:
    """A unit that does not exist leaves a note, so that nobody takes the shell for the service."""

    def run(argv, timeout_s, environ):
        return CommandOutcome(tuple(argv), 0, "LoadState=not-found\n", "", 0.0)

    service = read_service_environment(host({}), run, {"A": "1"}, "qwen2")

    assert service.variables == {"A": "1"}
    assert "the unit is not-found" in service.notes[0]
