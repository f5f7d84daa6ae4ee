"""Recorded tables of npu-smi as chips."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendd.host.npu_smi import parse_fields
from ascendd.host.npu_smi_table import NpuChip, parse_info

RECORDINGS = Path(__file__).resolve().parents[2] / "fixtures" / "npu-smi"


@pytest.fixture
def chips() -> Callable[[str], tuple[NpuChip, ...]]:
    """Return the chips of the recording whose name begins so."""

    def read(prefix: str) -> tuple[NpuChip, ...]:
        (path,) = RECORDINGS.glob(prefix + "*.txt")
        return parse_info(path.read_text()).chips

    return read


@pytest.fixture
def fields() -> Callable[[str], dict[str, str]]:
    """Return the key-value pairs of the recording whose name begins so."""

    def read(prefix: str) -> dict[str, str]:
        (path,) = RECORDINGS.glob(prefix + "*.txt")
        return parse_fields(path.read_text())

    return read
