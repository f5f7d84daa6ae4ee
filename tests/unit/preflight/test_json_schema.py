"""docs/doctor.schema.json says what `ascendd doctor --json` prints."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ascendd.preflight.check import CheckResult, Remedy, Verdict
from ascendd.preflight.json_schema import schema, text
from ascendd.preflight.report import to_json
from ascendd.preflight.target import Target

FILE = Path(__file__).resolve().parents[3] / "docs" / "doctor.schema.json"
TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "null": type(None),
}  # fmt: skip
NOTES = {"$schema", "title", "description"}


def problems(value: Any, rule: dict[str, Any], at: str = "$") -> list[str]:
    """Return where `value` breaks `rule`; a keyword that this does not know is a problem of its own."""
    found = [
        f"{at}: unknown keyword {word}" for word in rule.keys() - NOTES if not hasattr(Keyword, word.replace("$", ""))
    ]
    if "type" in rule and (wrong := Keyword.type(value, rule, at)):
        return wrong  # what is of another type has none of the rest
    for word in rule.keys() - NOTES:
        if hasattr(Keyword, word):
            found += getattr(Keyword, word)(value, rule, at)
    return found


class Keyword:
    """The keywords of JSON Schema that the file uses."""

    @staticmethod
    def type(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
        return [] if any(isinstance(value, TYPES[name]) for name in names) else [f"{at}: is no {names}"]

    @staticmethod
    def enum(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        return [] if value in rule["enum"] else [f"{at}: {value!r} is none of {rule['enum']}"]

    @staticmethod
    def const(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        return [] if value == rule["const"] else [f"{at}: {value!r} is not {rule['const']!r}"]

    @staticmethod
    def pattern(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        return [] if re.search(rule["pattern"], value) else [f"{at}: {value!r} does not match"]

    @staticmethod
    def minimum(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        return [] if value >= rule["minimum"] else [f"{at}: {value} is too small"]

    @staticmethod
    def required(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        return [f"{at}: lacks {key}" for key in rule["required"] if key not in value]

    @staticmethod
    def properties(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        known = {key: inner for key, inner in rule["properties"].items() if key in value}
        return [said for key, inner in known.items() for said in problems(value[key], inner, f"{at}.{key}")]

    @staticmethod
    def additionalProperties(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        return [f"{at}: {key} is not described" for key in value if key not in rule["properties"]]

    @staticmethod
    def items(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        return [said for number, item in enumerate(value) for said in problems(item, rule["items"], f"{at}[{number}]")]

    @staticmethod
    def oneOf(value: Any, rule: dict[str, Any], at: str) -> list[str]:
        fitting = [inner for inner in rule["oneOf"] if not problems(value, inner, at)]
        return [] if len(fitting) == 1 else [f"{at}: fits {len(fitting)} of {len(rule['oneOf'])}"]


def report() -> dict[str, Any]:
    """Return a report with one result of each verdict."""
    remedy = Remedy("ASD-P01", "Reboot the host.", ("systemctl reboot",))
    results = [
        CheckResult(verdict, "as it is", {"n": 1}, None if verdict is Verdict.PASS else remedy, 0.25, f"npu-{letter}")
        for verdict, letter in zip(Verdict, "abcde", strict=True)
    ]
    titles = {result.check_id: "A title" for result in results}
    made = to_json(results, Target(True, "because", fake_root="/h"), titles)
    return dict(json.loads(json.dumps(made)))


def test_the_file_is_the_generated_one() -> None:
    """`python -m ascendd.preflight.json_schema > docs/doctor.schema.json` was run after the last change."""
    assert FILE.read_text(encoding="utf-8") == text()


def test_a_report_with_every_verdict_fits_and_has_no_field_that_is_not_described() -> None:
    """What is printed is described, field by field."""
    made = report()

    assert problems(made, schema()) == []
    assert made.keys() == schema()["properties"].keys()
    assert {key for check in made["checks"] for key in check} == schema()["properties"]["checks"]["items"][
        "properties"
    ].keys()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exit_code": 64}, "$.exit_code"), ({"schema": 2}, "$.schema"), ({"device": "gpu"}, "$.device"),
        ({"checks": [{"id": "x"}]}, "$.checks[0]: lacks title"), ({"checks": None}, "$.checks"),
    ],
)  # fmt: skip
def test_a_report_that_is_wrong_does_not_fit(change: dict[str, Any], said: str) -> None:
    """The schema is no rubber stamp."""
    found = problems({**report(), **change}, schema())

    assert any(line.startswith(said) for line in found), found
