"""Documents are true where a machine can tell: links lead somewhere, commands exist, the two READMEs say the same."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest
import yaml

from ascendd.cli.app import VERBS
from ascendd.config.schema import InstanceConfig
from ascendd.errors import ExitCode
from ascendd.telemetry.compatibility import ALIASES
from ascendd.telemetry.metrics import SPECS

ROOT = Path(__file__).resolve().parent.parent.parent
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
DOCUMENTS = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]
IDS = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


def code_blocks(text: str) -> list[str]:
    """Return the fenced blocks of a document."""
    return re.findall(r"^```[a-z]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def code_spans(text: str) -> list[str]:
    """Return fenced blocks and inline code."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return code_blocks(text) + re.findall(r"`([^`\n]+)`", outside)


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_relative_links_resolve(path: Path) -> None:
    """Every link that is not to the web leads to a file or folder of the repository."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (path.parent / link).exists()]

    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_named_verbs_exist(path: Path) -> None:
    """Every `ascendd VERB` that a document shows is a verb with a module."""
    shown = {
        verb
        for span in code_spans(path.read_text(encoding="utf-8"))
        for verb in re.findall(r"(?:^|[\s/])ascendd ([a-z]\w*)", span, re.MULTILINE)
    }
    known = {verb for verb in VERBS if (ROOT / "ascendd" / "cli" / f"{verb}.py").is_file()}

    assert shown <= known, f"{path.name} names {sorted(shown - known)}; the verbs are {sorted(known)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_named_metrics_exist(path: Path) -> None:
    """A metric that a document names, whole or by its beginning, is declared."""
    declared = {*SPECS, *(alias.name for alias in ALIASES)}
    named = {
        name
        for span in code_spans(path.read_text(encoding="utf-8"))
        for name in re.findall(r"\b(?:ascendd_[a-z]\w*|vllm:\w+)", span)
    }
    unknown = {name for name in named if not any(metric.startswith(name) for metric in declared)}

    assert unknown == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_named_configuration_keys_exist(path: Path) -> None:
    """A `section.key` in a document is a key of the configuration."""
    text = path.read_text(encoding="utf-8")
    hints = typing.get_type_hints(InstanceConfig)
    unknown = [
        f"{section}.{key}"
        for section, key in re.findall(r"`(\w+)\.(\w+)(?:: [^`]*)?`", text)
        if section in hints and key not in hints[section].__struct_fields__
    ]

    assert unknown == []


def test_readme_lists_every_exit_status() -> None:
    """The table of exit statuses has each status of ExitCode, and no other."""
    for path in READMES:
        listed = {int(status) for status in re.findall(r"^\| (\d+) \|", path.read_text(encoding="utf-8"), re.MULTILINE)}

        assert listed == {int(code) for code in ExitCode}, path.name


def test_readmes_have_the_same_shape() -> None:
    """Headings, tables and list items are as many in both languages, in the same order."""
    shapes = [
        [
            "table row" if line.startswith("|") else line.split(" ")[0]
            for line in re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S).splitlines()
            if line.startswith(("#", "|", "- "))
        ]
        for path in READMES
    ]

    assert shapes[0] == shapes[1]


def test_readmes_have_the_same_commands() -> None:
    """Every code block is the same in both languages, so neither can go stale alone."""
    english, chinese = (code_blocks(path.read_text(encoding="utf-8")) for path in READMES)

    assert english == chinese
    assert len(english) >= 6


def test_readmes_link_to_the_same_files() -> None:
    """Both languages lead to the same documents."""
    english, chinese = (
        re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8").split("\n", 3)[3]) for path in READMES
    )

    assert english == chinese


def test_readme_instance_file_is_valid() -> None:
    """The instance file that the README shows passes the configuration check."""
    from ascendd.config.load import load_text

    (text,) = re.findall(r"<<'YAML'\n(.*?)^YAML$", READMES[0].read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

    assert load_text(text).model.path == "/var/lib/ascendd/models/qwen2"
    assert set(yaml.safe_load(text)) <= set(InstanceConfig.__struct_fields__)


def test_make_verbs_in_documents_exist() -> None:
    """Every `make VERB` that a document shows is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in DOCUMENTS:
        for span in code_spans(path.read_text(encoding="utf-8")):
            for words in re.findall(r"^make ((?:[a-z-]+ ?)+)", span, re.MULTILINE):
                assert set(words.split()) <= targets, f"{path.name}: make {words}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_named_repository_files_exist(path: Path) -> None:
    """A path of the repository that a document names in code is there."""
    pattern = re.compile(r"`((?:ascendd|checks|installer|systemd|packaging|tests|docs)/[\w./@-]*)`")
    text = path.read_text(encoding="utf-8")
    missing = [name for name in pattern.findall(text) if not (ROOT / name).exists()]

    assert missing == []
