"""What an import raises, as a fault of the installation with the name of the part and a remedy."""

from __future__ import annotations

import ctypes
import importlib
import sys

import pytest

from ascendd.errors import InstallationBroken, ModelNotFound
from ascendd.ipc.channel import BlockingChannel, socket_pair
from ascendd.ipc.installation import installation_fault, tell_import_failure
from ascendd.ipc.messages import ControlMessage, Fault
from ascendd.ipc.rank_messages import FromRank


def raised(call, *args):
    """Return what `call` raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - every kind is looked at below
        call(*args)
    return caught.value


def test_a_missing_module_is_named_with_its_package():
    """The message has the dotted name, the remedy the package and the interpreter to install it with."""
    fault = installation_fault(raised(importlib.import_module, "nowhere_pkg.part"))

    assert isinstance(fault, InstallationBroken)
    assert "nowhere_pkg" in fault.message
    assert f"{sys.executable} -m pip install nowhere_pkg" in fault.remedy


def test_a_file_cut_off_in_the_middle_is_named_with_its_line(tmp_path, monkeypatch):
    """A source file that is not whole: its path and line."""
    (tmp_path / "half_written.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)

    fault = installation_fault(raised(importlib.import_module, "half_written"))

    assert f"{tmp_path}/half_written.py, line 2" in fault.message


def test_a_name_that_another_version_lacks_is_a_mix_of_versions():
    """`from package import name` that fails is told as such, with the module."""
    fault = installation_fault(raised(exec, "from json import no_such_name"))

    assert "json" in fault.message
    assert "wrong version" in fault.remedy


@pytest.mark.parametrize(
    ("library", "remedy"),
    [("libascendcl.so", "LD_LIBRARY_PATH in /etc/ascendd/cann.env"), ("libnope.so.1", "ldconfig")],
)
def test_a_missing_shared_library_is_named(library, remedy):
    """What the dynamic loader says, of a ctypes load as of an extension; one of the vendor's has the vendor's remedy."""
    by_ctypes = installation_fault(raised(ctypes.CDLL, library))
    by_import = installation_fault(ImportError(f"{library}: cannot open shared object file: No such file or directory"))

    assert by_ctypes.facts["library"] == by_import.facts["library"] == library
    assert remedy in by_ctypes.remedy


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("x"), ModelNotFound("/m")])
def test_other_errors_stay_what_they_are(error):
    """A full disk, a defect and an error of the product are no fault of the installation."""
    assert installation_fault(error) is None


def test_the_traceback_on_the_wire_has_the_import():
    """Whoever reads the incident sees the line that imported, not only the summary."""
    fault = Fault.from_error(installation_fault(raised(importlib.import_module, "nowhere_pkg")))

    assert fault.code == "ASD-H05"
    assert "ModuleNotFoundError: No module named 'nowhere_pkg'" in fault.traceback_text


@pytest.mark.parametrize(("role", "union"), [("_engine", ControlMessage), ("_worker", FromRank)])
def test_a_program_that_cannot_be_imported_says_so_on_its_link(capsys, role, union):
    """Before Hello already: the fault goes over the link of the role, the exit status is the one that is never retried."""
    ours, theirs = socket_pair()
    error = raised(importlib.import_module, "nowhere_pkg")

    status = tell_import_failure(role, ["--control-fd", str(theirs.detach())], error)
    with ours:
        told = BlockingChannel(ours, union).recv(5.0)

    assert status == 71
    assert told.fault.code == "ASD-H05"
    assert "No module named 'nowhere_pkg'" in capsys.readouterr().err
