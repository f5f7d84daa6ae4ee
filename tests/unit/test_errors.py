"""The error tree is complete: codes, exit codes, remedies, runbooks, and the drawing in the module's docstring."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from ascendd import errors
from ascendd.diagnose.catalogue import load_catalogue
from ascendd.errors import AscenddError, ExitCode, RequestError, error_by_code, walk_errors
from ascendd.ipc.messages import Fault

ROOT = Path(__file__).resolve().parent.parent.parent
CLASSES = [cls for cls in walk_errors() if cls.__module__.startswith("ascendd.")]
IDS = [cls.__name__ for cls in CLASSES]
# What `ascendd_exit` of each family is documented as: the family's root decides for all below it.
FAMILY_EXITS = {
    "UsageError": 64, "ModelError": 66, "PreflightFailed": 69, "ProbeError": 69,
    "DeviceFault": 70, "EngineFault": 70, "IpcError": 70, "RequestError": 70, "HostError": 71, "ConfigError": 78,
}  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_class_is_described(cls: type[AscenddError]) -> None:
    """Every class has a sentence, a code of its own form and a remedy."""
    assert (cls.__doc__ or "").strip().endswith(".")
    assert "code" in vars(cls)
    assert re.fullmatch(r"ASD-[A-Z]\d\d", cls.code)
    assert cls.default_remedy.strip().endswith(".")


def test_codes_are_unique() -> None:
    """No two classes share a code, so a code found in a log names one class."""
    shared = {code: count for code, count in Counter(cls.code for cls in CLASSES).items() if count > 1}

    assert shared == {}


@pytest.mark.parametrize("cls", CLASSES[1:], ids=IDS[1:])
def test_exit_code_is_that_of_the_family(cls: type[AscenddError]) -> None:
    """The exit code follows sysexits by family; the unit's RestartPreventExitStatus relies on it."""
    family = next(name for name in FAMILY_EXITS if any(base.__name__ == name for base in cls.__mro__))

    assert int(cls.exit_code) == FAMILY_EXITS[family]
    assert cls.exit_code in ExitCode


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_permanent_and_retryable_exclude_each_other(cls: type[AscenddError]) -> None:
    """What would fail again in the same way is never called retryable."""
    assert not (cls.permanent and cls.retryable)


@pytest.mark.parametrize("cls", [c for c in CLASSES if issubclass(c, RequestError)], ids=lambda cls: cls.__name__)
def test_request_errors_have_a_status(cls: type[RequestError]) -> None:
    """A request error has an HTTP status of an error, and Retry-After only where a retry can help."""
    assert 400 <= cls.http_status <= 599
    assert cls.error_type.endswith("_error")
    if cls.retry_after_s is not None:
        assert cls.retryable


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_runbook_exists_and_names_the_code(cls: type[AscenddError]) -> None:
    """The file that `error.runbook` points to is there, is titled with code and class, and has the five parts."""
    path = ROOT / cls("x").runbook
    text = path.read_text(encoding="utf-8")

    assert text.startswith(f"# {cls.code} {cls.__name__}\n")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["What you see", "What it means", "What to look at", "What to do", "How you know it is over"]


def test_no_runbook_without_a_class() -> None:
    """A runbook that neither an error nor a diagnosis points to is stale."""
    diagnosed = {row.code for row in load_catalogue().diagnoses.values()}
    files = {path.stem for path in (ROOT / "docs" / "runbooks").glob("ASD-*.md")}

    assert files == {cls.code for cls in CLASSES} | diagnosed


def test_docstring_draws_the_whole_tree() -> None:
    """The drawing in ascendd/errors.py names every class once, request errors with their status."""
    drawing = (errors.__doc__ or "").split("Every class has")[0]
    drawn = re.findall(r"[A-Z][A-Za-z]+[a-z]", drawing.replace("The error tree", ""))

    assert Counter(name for name in drawn if name in IDS) == Counter(IDS)
    for cls in CLASSES:
        if issubclass(cls, RequestError) and cls is not RequestError:
            assert f"{cls.__name__} {cls.http_status}" in drawing


def test_errors_module_exports_every_class() -> None:
    """Everyone imports from ascendd.errors, wherever a class is written."""
    missing = [name for name in IDS if not hasattr(errors, name)]

    assert missing == []


@pytest.mark.parametrize("cls", CLASSES, ids=IDS)
def test_error_survives_the_wire(cls: type[AscenddError]) -> None:
    """An error rebuilt from its Fault has the class, message, remedy and facts of the first."""
    error = cls("no room", remedy="Make room.", wanted=3, path="/var/lib/x")

    wire = msgspec.msgpack.encode(Fault.from_error(error))
    rebuilt = msgspec.msgpack.decode(wire, type=Fault).to_error()

    assert type(rebuilt) is cls
    assert (str(rebuilt), rebuilt.remedy, rebuilt.facts) == (str(error), error.remedy, error.facts)


def test_fact_that_is_no_plain_value_travels_as_text() -> None:
    """A fact of any other type arrives as its repr, so that no error is lost for its facts."""
    rebuilt = Fault.from_error(AscenddError("x", where=Path("/srv"), names=["a"])).to_error()

    assert rebuilt.facts == {"where": repr(Path("/srv")), "names": "['a']"}


def test_foreign_error_becomes_the_root_with_its_type() -> None:
    """An exception of Python travels as the root code, with its type in the message and its traceback."""
    try:
        {}["key"]
    except KeyError as caught:
        fault = Fault.from_error(caught)

    assert fault.code == AscenddError.code
    assert fault.message == "KeyError: 'key'"
    assert "test_errors.py" in fault.traceback_text


@pytest.mark.parametrize("facts", [{"message": "other"}, {"remedy": "other"}, {"self": "x"}, {"code": "ASD-Z99"}])
def test_fault_with_awkward_fact_names_is_rebuilt(facts: dict[str, str]) -> None:
    """Facts named like parameters, as another version may send them, do not break the rebuilding of an error."""
    rebuilt = Fault("ASD-E02", "gone", "", dict(facts)).to_error()

    assert type(rebuilt) is errors.EngineDead
    assert str(rebuilt) == "gone"


def test_unknown_code_becomes_the_root() -> None:
    """A code of a newer version is still an error here."""
    assert error_by_code("ASD-Z99") is AscenddError
