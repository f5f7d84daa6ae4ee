"""What is refused before a process starts: each bad key file and adapter with its code, its exit and its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendd.config.load import convert
from ascendd.errors import AscenddError
from ascendd.host.systemd import Notifier
from ascendd.supervisor import instance
from ascendd.supervisor.inputs import check_inputs
from ascendd.supervisor.instance import complete

TINY = (
    '{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2,'
    ' "num_key_value_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 32,'
    ' "max_position_embeddings": 64, "rms_norm_eps": 1e-6}'
)


def adapter(folder: Path, *, config: str | None = "{}", weights: bool = True) -> Path:
    """Write an adapter's folder, or one that lacks a part."""
    folder.mkdir()
    if config is not None:
        (folder / "adapter_config.json").write_text(config, encoding="utf-8")
    if weights:
        (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def refuse_to_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make every file called `name` one that this user may not read; root could read a real one."""
    real = Path.open

    def guarded(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", guarded)


def test_good_files_pass(tmp_path: Path) -> None:
    """A key file with a key and whole adapter folders are not in the way."""
    keys = tmp_path / "keys"
    keys.write_text("k-1\n", encoding="utf-8")
    adapters = [{"name": "a", "path": str(adapter(tmp_path / "a"))}]
    config = {"model": {"path": "/m", "adapters": adapters}, "listen": {"api_key_file": str(keys)}}

    check_inputs(convert(config))


@pytest.mark.parametrize(
    ("content", "readable", "code", "status", "words"),
    [
        (None, True, "ASD-C01", 78, "does not exist"),
        (b"# nothing\n", True, "ASD-C01", 78, "holds no key"),
        (b"\xff\xfe", True, "ASD-C01", 78, "is not UTF-8"),
        (b"k-1\n", False, "ASD-H03", 71, "cannot be read: Permission denied"),
    ],
    ids=["missing", "empty", "binary", "unreadable"],
)
def test_a_bad_key_file_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
    readable: bool,
    code: str,
    status: int,
    words: str,
) -> None:
    """The setting, the path and the reason are named, and no key."""
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    if not readable:
        refuse_to_read(monkeypatch, "keys")
    with pytest.raises(AscenddError) as caught:
        check_inputs(convert({"model": {"path": "/m"}, "listen": {"api_key_file": str(keys)}}))

    assert (caught.value.code, caught.value.exit_code) == (code, status)
    assert f"listen.api_key_file: {keys}" in caught.value.message
    assert words in caught.value.message
    assert "k-1" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "unreadable", "code", "status", "words"),
    [
        (lambda folder: folder, None, "ASD-M07", 66, "does not exist"),
        (lambda folder: folder.write_text("x"), None, "ASD-M07", 66, "is not a folder"),
        (lambda folder: adapter(folder, config=None), None, "ASD-M07", 66, "holds no adapter_config.json"),
        (lambda folder: adapter(folder, weights=False), None, "ASD-M07", 66, "holds no adapter_model.safetensors"),
        (lambda folder: adapter(folder, config="{"), None, "ASD-M07", 66, "adapter_config.json cannot be read"),
        (lambda folder: adapter(folder, config="[]"), None, "ASD-M07", 66, "holds no JSON object"),
        (adapter, "adapter_model.safetensors", "ASD-H03", 71, "cannot be read: Permission denied"),
    ],
    ids=["missing", "file", "no-config", "no-weights", "cut-off", "list", "unreadable"],
)
def test_a_bad_adapter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made, unreadable: str | None, code: str, status: int, words: str
) -> None:
    """Its name, its path and what is wrong are told."""
    folder = tmp_path / "a"
    made(folder)
    if unreadable is not None:
        refuse_to_read(monkeypatch, unreadable)
    with pytest.raises(AscenddError) as caught:
        check_inputs(convert({"model": {"path": "/m", "adapters": [{"name": "legal", "path": str(folder)}]}}))

    assert (caught.value.code, caught.value.exit_code) == (code, status)
    assert f"legal: {folder}" in caught.value.message
    assert words in caught.value.message


def test_they_are_looked_at_before_anything_else_is_done(tmp_path: Path) -> None:
    """An instance whose key file is missing ends before its preflight checks, and so before any process."""
    (tmp_path / "config.json").write_text(TINY, encoding="utf-8")
    gone = str(tmp_path / "gone")
    config = complete(convert({"model": {"path": str(tmp_path)}, "listen": {"api_key_file": gone}}))
    passed: list[object] = []
    with pytest.raises(AscenddError, match=r"gone does not exist"):
        instance._run(config, "t", None, passed.append, Notifier())

    assert passed == []
