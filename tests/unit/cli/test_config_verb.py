"""`ascendd config`, the commented example and the schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import yaml

from ascendd.cli import app as cli
from ascendd.config.load import load_file
from ascendd.config.schema import InstanceConfig

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
EXAMPLE = PACKAGING / "example.yaml"


def test_the_example_is_a_valid_instance_file():
    """The commented example decodes without a problem."""
    config = load_file(EXAMPLE)

    assert config.model.name == "qwen2"


def test_the_example_shows_every_key():
    """Each key of each section is in the example, set or commented out, and has a comment of its own or its group's."""
    text = EXAMPLE.read_text()
    shown = {match[1] for match in re.finditer(r"^(?:  )?(?:# )?(\w+):(?: |$)", text, re.M)}

    for section in msgspec.structs.fields(InstanceConfig):
        assert section.name in shown
        # A section that may be left out as a whole is a union with None.
        for kind in get_args(section.type) or (section.type,):
            if isinstance(kind, type(msgspec.Struct)):
                assert {field.name for field in msgspec.structs.fields(kind)} <= shown


def test_commented_keys_of_the_example_are_valid_too():
    """What is commented out may be commented in instead of its alternatives."""
    text = EXAMPLE.read_text().replace("  kv_cache_memory: 16GiB\n", "")
    for key in ("max_num_blocks", "gpu_memory_utilization"):
        data = yaml.safe_load(text.replace(f"  # {key}:", f"  {key}:"))

        assert key in data["engine"]
        msgspec.convert(data, InstanceConfig)


def test_the_schema_file_is_the_schema(capsys):
    """packaging/schema.json is what `ascendd config schema` prints, and it knows every section."""
    assert cli.main(["config", "schema"]) == 0

    printed = capsys.readouterr().out
    assert printed == (PACKAGING / "schema.json").read_text()
    properties = json.loads(printed)["$defs"]["InstanceConfig"]["properties"]
    assert list(properties) == sorted(InstanceConfig.__struct_fields__)


def test_check_passes_a_good_file(capsys):
    """A file without problems is said to have none."""
    assert cli.main(["config", "check", str(EXAMPLE)]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: no problems\n"


def test_check_lists_every_problem(tmp_path, capsys):
    """All problems are listed at once, with exit 78."""
    file = tmp_path / "bad.yaml"
    file.write_text("model: {path: /m}\nengine: {max_num_seq: 4, block_size: 5}\nlisten: {port: x}\n")

    assert cli.main(["config", "check", str(file)]) == 78
    err = capsys.readouterr().err
    assert all(path in err for path in ("$.engine.max_num_seq", "$.engine.block_size", "$.listen.port"))


@pytest.mark.parametrize(("flags", "decode"), [([], yaml.safe_load), (["--json"], json.loads)])
def test_show_fills_in_defaults(tmp_path, capsys, flags, decode):
    """The whole configuration is printed, as YAML or JSON, and reads back as the same."""
    file = tmp_path / "a.yaml"
    file.write_text("model: {path: /m}\n")

    assert cli.main(["config", "show", str(file), *flags]) == 0
    data = decode(capsys.readouterr().out)
    assert data["listen"]["port"] == 8000
    assert msgspec.convert(data, InstanceConfig) == load_file(file)


def test_a_missing_file_is_78(tmp_path, capsys):
    """The error names the file."""
    assert cli.main(["config", "check", str(tmp_path / "none.yaml")]) == 78
    assert "none.yaml does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b"])
def test_run_refuses_what_is_no_instance_name(name, capsys):
    """An instance is named by a file name without its end, never by a path."""
    assert cli.main(["run", "--instance", name]) == 64
    assert "is not the name of an instance" in capsys.readouterr().err


def test_run_of_an_unknown_instance_is_78(capsys):
    """The error names the file that was looked for."""
    assert cli.main(["run", "--instance", "no-such-instance"]) == 78
    assert "no-such-instance.yaml" in capsys.readouterr().err
