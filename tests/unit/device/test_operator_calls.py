"""
Every call of a torch_npu operator in the source, beside the schemas that torch_npu itself printed.

tests/npu/operator_calls.json is what tests/npu/contract.py wrote with the real torch_npu; tests/npu holds it to be
current. This test needs no torch, so a renamed argument fails on every machine.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEVICE = ROOT / "ascendd" / "device"
LISTED = json.loads((ROOT / "tests" / "npu" / "operator_calls.json").read_text(encoding="utf-8"))
SCHEMAS = {call["operator"]: call["schema"] for call in LISTED["calls"]}
# It has no shape function, so the contract cannot run it: the schema as torch_npu 2.13.0 printed it.
SCHEMAS["npu_format_cast"] = (
    "npu::npu_format_cast(Tensor input, int acl_format, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor"
)


def calls_in(source: str) -> Iterator[tuple[str, int, list[str]]]:
    """Yield operator, number of positional arguments and keywords of each `torch.ops.npu.X(...)`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.ops.npu."):
            assert all(keyword.arg for keyword in node.keywords), "a call that hides its arguments cannot be checked"
            yield ast.unparse(node.func).rpartition(".")[2], len(node.args), [str(k.arg) for k in node.keywords]


def broken(source: str) -> list[str]:
    """Return what in `source` the schemas refuse."""
    found = []
    for operator, num_positional, keywords in calls_in(source):
        match = re.fullmatch(r"npu::\w+\((.*)\) -> .*", SCHEMAS.get(operator, ""))
        if match is None:
            found.append(f"{operator} is not in operator_calls.json")
            continue
        positional, _, named = match[1].partition("*, ")
        names = [
            re.split(r"[ =]", argument.strip())[1]
            for argument in re.split(r", (?=[A-Z a-z\[\]0-9?()!]+ )", positional)
            if argument.strip(" ,")
        ]
        known = set(names) | {re.split(r"[ =]", argument.strip())[1] for argument in named.split(", ") if argument}
        if num_positional > len(names):
            found.append(f"{operator} takes {len(names)} positional arguments, not {num_positional}")
        found += [f"{operator} has no argument {name}" for name in keywords if name not in known]
        found += [f"{operator} gets {name} twice" for name in keywords if name in names[:num_positional]]
    return found


def sources() -> list[Path]:
    return sorted(path for path in DEVICE.rglob("*.py") if "torch.ops.npu." in path.read_text(encoding="utf-8"))


def test_every_call_meets_its_schema() -> None:
    """In all files of the device room; there are ten calls of ten operators, one of them twice."""
    calls = [call for path in sources() for call in calls_in(path.read_text(encoding="utf-8"))]

    assert [problem for path in sources() for problem in broken(path.read_text(encoding="utf-8"))] == []
    assert {operator for operator, _, _ in calls} == set(SCHEMAS)


KEYWORDS = sorted(
    {
        (str(path.relative_to(DEVICE)), operator, keyword)
        for path in sources()
        for operator, _, keywords in calls_in(path.read_text(encoding="utf-8"))
        for keyword in keywords
    }
)


@pytest.mark.parametrize(("file", "operator", "keyword"), KEYWORDS)
def test_a_renamed_argument_is_found(file, operator, keyword) -> None:
    """Each keyword of each call, renamed on purpose."""
    source = re.sub(rf"\b{keyword}=", f"{keyword}_renamed=", (DEVICE / file).read_text(encoding="utf-8"))

    assert f"{operator} has no argument {keyword}_renamed" in broken(source)


def test_the_list_names_the_versions_it_was_made_with() -> None:
    """And the published models whose forward pass made each call."""
    assert LISTED["torch_npu"] == "2.13.0"
    assert all(call["models"] for call in LISTED["calls"])
    assert {model for call in LISTED["calls"] for model in call["models"]} == {
        "Llama-3-8B", "Qwen2-7B", "Qwen3-8B", "Phi-3-mini", "DeepSeek-V2-Lite", "DeepSeek-V2",
    }  # fmt: skip
