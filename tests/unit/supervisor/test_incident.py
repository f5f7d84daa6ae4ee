"""Incident bundles: what they hold, what they hide, and how large they get."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from ascendd.config.load import load_text
from ascendd.supervisor.incident import KEPT, MAX_BYTES, IncidentBook, bundles

INCIDENT = {"child": "engine", "episode": "e-1", "unix_s": 1.0, "reason": "engine was killed by SIGSEGV"}
SECRET = "sk-abcdef0123456789"


def book(tmp_path: Path) -> IncidentBook:
    """A book whose tools find nothing on their path, and that waits for no line."""
    return IncidentBook(tmp_path / "incidents", "qwen2", {"PATH": str(tmp_path)}, catch_up_s=0.0)


def logged(tmp_path: Path, lines: list[str]):
    """Return the configuration of an instance that has written `lines`."""
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    return load_text(f"model: {{path: /m}}\nlog: {{file: {tmp_path}/log}}")


def test_a_bundle_holds_what_was_known(tmp_path: Path) -> None:
    """The last lines by process, stacks beside them, fault, memory, configuration and versions are in one file."""
    lines = [json.dumps({"role": role, "event": f"{role}.{n}"}) for n in range(300) for role in ("engine", "api")]
    config = logged(tmp_path, [*lines, "Fatal Python error: Segmentation fault"])
    fault = {"code": "ASD-E01", "message": "gone", "remedy": "r", "facts": {}, "traceback_text": "t"}
    path = book(tmp_path).pin(INCIDENT, fault, [(1.0, {"engine": 5})], config, {"api": "Thread 1:\n  File x"})

    assert path is not None
    bundle = json.loads(path.read_text())
    assert len(bundle["lines"]["engine"]) == 200
    assert json.loads(bundle["lines"]["api"][-1])["event"] == "api.299"
    assert bundle["lines"]["other"] == ["Fatal Python error: Segmentation fault"]
    assert (bundle["fault"]["code"], bundle["memory_curve"]) == ("ASD-E01", [{"unix_s": 1.0, "engine": 5}])
    assert bundle["stacks"] == {"api": ["Thread 1:", "  File x"]}
    assert (bundle["config"]["model"]["path"], bundle["incident"]) == ("/m", INCIDENT)
    assert {"ascendd", "python", "kernel", "msgspec"} <= bundle["versions"].keys()
    assert bundle["kernel_faults"][0].startswith("unavailable: ")
    assert path.stat().st_mode & 0o007 == 0


def test_the_first_failure_of_an_episode_stays(tmp_path: Path) -> None:
    """A second bundle of the same episode is not written over the first."""
    made, config = book(tmp_path), logged(tmp_path, ["x"])
    first = made.pin(INCIDENT, None, [], config)
    assert first is not None
    text = first.read_text()

    assert made.pin({**INCIDENT, "reason": "later"}, None, [], config) is None
    assert first.read_text() == text


def test_secrets_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    """In lines, in the fault's text and in its facts."""
    config = logged(tmp_path, [f'{{"role":"api","event":"Bearer {SECRET}"}}'])
    fault = {"message": f"key {SECRET}", "facts": {"deep": [{"authorization": "word", "x": SECRET}]}}
    path = book(tmp_path).pin(INCIDENT, fault, [], config)

    assert path is not None
    text = path.read_text()
    assert SECRET not in text
    assert json.loads(text)["fault"]["facts"]["deep"][0]["authorization"] == "[hidden]"


def test_a_bundle_is_capped_and_only_so_many_are_kept(tmp_path: Path) -> None:
    """Long lines make a bundle lose its older ones; of many bundles the oldest go."""
    config = logged(tmp_path, [json.dumps({"role": f"r{n % 3}", "text": "y" * 4000}) for n in range(500)])
    made = book(tmp_path)
    paths = [made.pin({**INCIDENT, "episode": f"e-{n:03}"}, None, [], config) for n in range(KEPT + 2)]

    assert paths[-1] is not None
    assert paths[-1].stat().st_size <= MAX_BYTES
    assert json.loads(paths[-1].read_text())["cut"]
    assert len(bundles(tmp_path / "incidents")) == KEPT
    assert paths[0] is not None
    assert not paths[0].exists()


def test_a_bundle_waits_for_the_last_words(tmp_path: Path) -> None:
    """Lines that the log writer has not written yet are in the bundle; where they never come, it says that."""
    last = json.dumps({"role": "engine", "event": "last words"})
    end = json.dumps({"role": "supervisor", "event": "supervisor.child_ended", "episode": "e-1"})
    config = logged(tmp_path, [json.dumps({"role": "supervisor", "event": "early"})])

    def write_late() -> None:
        with (tmp_path / "log").open("a") as file:
            file.write(f"{last}\n{end}\n")

    late = threading.Timer(0.2, write_late)
    late.start()
    path = IncidentBook(tmp_path / "incidents", "qwen2", {}, catch_up_s=90.0).pin(INCIDENT, None, [], config)
    late.join()
    never = book(tmp_path).pin({**INCIDENT, "episode": "e-2"}, None, [], config)

    assert path is not None
    assert json.loads(path.read_text())["lines"]["engine"] == [last]
    assert "behind" not in json.loads(path.read_text())["lines"]
    assert never is not None
    assert json.loads(never.read_text())["lines"]["behind"] == ["the log had not taken the line of this end after 0 s"]


def test_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    """Without a log file and without systemd the bundle says that no lines were kept."""
    path = book(tmp_path).pin(INCIDENT, None, [], load_text("model: {path: /m}"))

    assert path is not None
    assert "nothing is kept" in json.loads(path.read_text())["lines"]["unavailable"][0]


def test_a_bundle_that_the_disk_does_not_take_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a bundle would take the room that is short; the bundles that are there are counted, this one is not."""
    made, config = book(tmp_path), logged(tmp_path, ["x"])
    first = made.pin(INCIDENT, None, [], config)
    assert first is not None

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)

    with pytest.raises(OSError, match="No space left"):
        made.pin({**INCIDENT, "episode": "e-2"}, None, [], config)
    assert [path.name for path in (tmp_path / "incidents").iterdir()] == [first.name]
    assert made.num_bytes() == first.stat().st_size
