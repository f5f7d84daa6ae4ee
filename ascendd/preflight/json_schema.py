"""JSON schema of `ascendd doctor --json`: `python -m ascendd.preflight.json_schema` prints docs/doctor.schema.json."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict

from ascendd.preflight.check import Verdict
from ascendd.preflight.report import SCHEMA_VERSION, DoctorExit

_TEXT = {"type": "string"}
_CODE = {"type": "string", "pattern": "^ASD-[A-Z][0-9]{2}$", "description": "a page of docs/runbooks"}


def schema() -> Dict[str, Any]:
    """Return the schema (JSON Schema 2020-12). Fields are only added while `schema` stays the same."""
    remedy = {
        "type": "object",
        "description": "what to do; null where nobody is needed",
        "required": ["runbook", "text", "commands"],
        "properties": {
            "runbook": _CODE,
            "text": _TEXT,
            "commands": {
                "type": "array",
                "items": _TEXT,
                "description": "to be typed by a person; the doctor runs none",
            },
        },
        "additionalProperties": False,
    }
    check = {
        "type": "object",
        "required": ["id", "title", "verdict", "summary", "evidence", "remedy", "duration_s"],
        "properties": {
            "id": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"},
            "title": _TEXT,
            "verdict": {"enum": [verdict.value for verdict in Verdict]},
            "summary": {"type": "string", "description": "the finding, for people; its words may change"},
            "evidence": {"type": "object", "description": "what was measured; its keys are the check's own"},
            "remedy": {"oneOf": [{"type": "null"}, remedy]},
            "duration_s": {"type": "number", "minimum": 0, "description": "seconds"},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ascendd doctor --json",
        "type": "object",
        "required": [
            "schema", "version", "device", "device_reason", "fake_host", "exit_code", "summary", "checks",
        ],
        "properties": {
            "schema": {"const": SCHEMA_VERSION, "description": "raised when a field goes or changes its meaning"},
            "version": {"type": "string", "description": "of ascendd"},
            "device": {"enum": ["npu", "cpu"], "description": "what was checked for"},
            "device_reason": {"type": "string", "description": "why"},
            "fake_host": {"type": ["string", "null"], "description": "folder of a fake host; null for a real one"},
            "exit_code": {"enum": [int(code) for code in DoctorExit]},
            "summary": {"type": "string", "description": "the last line of the report"},
            "checks": {"type": "array", "items": check},
        },
    }  # fmt: skip


def text() -> str:
    """Return the schema as the file in docs holds it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
