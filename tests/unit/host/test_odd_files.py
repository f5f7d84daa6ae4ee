"""Files, answers and paths that no sound host has: told as what cannot be read, never a crash and never sound."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ascendd.checks import clock, kernel_log

from ascendd.errors import ProbeParseError, ProbeUnavailable
from ascendd.host.command import CommandOutcome
from ascendd.host.files import HostFiles
from ascendd.host.kernel_log import LONGEST_LINES, read_kernel_log
from ascendd.host.npu_smi import NpuSmi
from ascendd.host.version_files import INSTALL_INFO, read_cann, read_driver
from ascendd.preflight.check import CheckResult, Remedy, Verdict
from ascendd.preflight.context import CheckContext, CheckRequest

NOBODY = 65534
TOOLKIT = "/opt/my ascend/ascend-toolkit/latest"


def test_a_path_with_a_nul_byte_is_a_file_that_is_not_there(host) -> None:
    """A broken install info names such a path; the driver is then not found, and nothing breaks."""
    files = host({INSTALL_INFO: "Driver_Install_Path_Param=\0/usr/local/Ascend\n"})
    odd = "/a\0b"

    assert read_driver(files).version is None
    assert (files.exists(odd), files.is_dir(odd), files.is_executable(odd), files.list_dir(odd)) == (
        False,
        False,
        False,
        (),
    )
    assert (files.read_link(odd), files.resolve(odd)) == (None, odd)
    for ask in (files.read_text, files.size, files.disk_space):
        with pytest.raises(ProbeUnavailable, match="embedded null byte"):
            ask(odd)


def test_links_that_lead_to_themselves_are_not_there(tmp_path: Path) -> None:
    """Reading such a link says why; looking for it says no."""
    (tmp_path / "loop").symlink_to("loop")
    files = HostFiles(str(tmp_path))

    assert not files.exists("/loop")
    assert not files.is_executable("/loop/tool")
    with pytest.raises(ProbeUnavailable, match="Too many levels of symbolic links"):
        files.read_text("/loop")


def test_a_folder_that_this_user_may_not_enter_hides_what_is_in_it(tmp_path: Path) -> None:
    """What cannot be seen is not there, and reading it says why; no Python of ours raises for it."""
    (tmp_path / "shut/bin").mkdir(parents=True)
    (tmp_path / "shut/bin/npu-smi").touch(0o755)
    files = HostFiles(str(tmp_path))
    (tmp_path / "shut").chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        seen = (files.exists("/shut/bin"), files.is_dir("/shut/bin"), files.is_executable("/shut/bin/npu-smi"))
        with pytest.raises(ProbeUnavailable, match="Permission denied"):
            files.read_text("/shut/bin/npu-smi")
    finally:
        os.seteuid(user)
        (tmp_path / "shut").chmod(0o755)

    assert seen == (False, False, False)


def test_control_characters_reach_no_terminal() -> None:
    """What a broken tool printed is told with a sign in their place; tabs and new lines stay."""
    found = CheckResult(Verdict.FAIL, "\0\x1b[2J runs\ton\n", {}, Remedy("ASD-P01", "ask \x07", ("a \x9b",)))

    told = CheckResult.from_json(found.to_json())

    assert told.summary == "\ufffd\ufffd[2J runs\ton\n"
    assert told.remedy == Remedy("ASD-P01", "ask \ufffd", ("a \ufffd",))


def test_a_toolkit_below_a_path_with_spaces_is_read(host) -> None:
    """A version file without a newline at its end, with the line ends of another system, is as good."""
    info = f"{TOOLKIT}/aarch64-linux/ascend_toolkit_install.info"
    files = host({info: "package_name=Ascend-cann-toolkit\r\nversion=7.0.0.H100"})

    (found,) = read_cann(files, {"ASCEND_HOME_PATH": TOOLKIT})

    assert (found.root, found.version, found.architecture) == (TOOLKIT, "7.0.0.H100", "aarch64")


@pytest.mark.parametrize(
    "answer", ["", "\0\x01junk\n", "Chip ID : 0\n", "HBM Double Bit Error Count : NA\nChip ID : 0\n"]
)
def test_counters_that_cannot_be_read_are_not_zero(answer: str) -> None:
    """An answer of npu-smi without a counter of double-bit errors is no answer."""
    tool = NpuSmi("npu-smi", answering(answer), {})

    with pytest.raises(ProbeParseError, match="no counters of double-bit errors"):
        tool.ecc(3)


def answering(text: str) -> Callable[..., CommandOutcome]:
    """Return a tool that prints `text`."""
    return lambda argv, timeout_s, environ: CommandOutcome(tuple(argv), 0, text, "", 0.0)


def test_of_a_journal_that_is_too_long_the_end_is_read() -> None:
    """A year of messages does not hide the fault of today, and the verdict says how much was read."""

    def run(argv, timeout_s, environ) -> CommandOutcome:
        if argv[-2:] != ["-n", str(LONGEST_LINES)]:
            raise ProbeParseError(f"{argv[0]} printed more than 4 MiB and was killed")
        return CommandOutcome(tuple(argv), 0, "[ 12.345678] host kernel: devdrv: device(2) is not working\n", "", 0.0)

    assert "device(2) is not working" in read_kernel_log(run, {})
    assert kernel_log.judge((), LONGEST_LINES).summary == "the last 20000 lines, no fault that is known"


def test_a_journal_that_refuses_is_not_asked_for_its_end() -> None:
    """What is not too long is asked once, and both tools are named."""
    asked = []

    def run(argv, timeout_s, environ) -> CommandOutcome:
        asked.append(argv[0])
        return CommandOutcome(tuple(argv), 0, "-- No entries --\n", "", 0.0)

    with pytest.raises(ProbeUnavailable, match=r"journalctl said: -- No entries --.*dmesg said"):
        read_kernel_log(run, {})

    assert asked == ["journalctl", "dmesg"]


def test_an_answer_about_the_clock_that_is_none_is_no_pass() -> None:
    """Whether it is kept is then not known, which is ERROR."""
    context = CheckContext(CheckRequest())
    context.run = answering("the quick brown fox\n")

    result = clock.Clock().run(context)

    assert result.verdict is Verdict.ERROR
    assert result.summary == "whether the clock is synchronised cannot be read: timedatectl said: the quick brown fox"
