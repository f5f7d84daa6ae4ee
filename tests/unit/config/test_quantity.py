"""Byte quantities in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.config.quantity import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [
        (1, 1),
        (1048576, 1048576),
        ("1", 1),
        ("100MB", 100_000_000),
        ("512 mb", 512_000_000),
        ("4GiB", 4 * 2**30),
        ("  4 gib  ", 4 * 2**30),
        ("1.5KiB", 1536),
        ("2k", 2048),
        ("3G", 3 * 2**30),
        ("0.5TB", 500_000_000_000),
        ("7B", 7),
    ],
)
def test_quantity_is_read(written: int | str, num_bytes: int) -> None:
    """Decimal and binary units mean what their names say, in any case."""
    assert parse_bytes(written) == num_bytes


@pytest.mark.parametrize(
    "written", ["", "GiB", "4 GiB extra", "-1MB", "1e6", "4XB", "0x10", "1,5GB", True, 1.5, None, [1]]
)
def test_what_is_no_quantity_is_refused_with_the_rule(written: object) -> None:
    """Anything else is refused, with an example of what to write."""
    with pytest.raises(ValueError, match="such as 4GiB"):
        parse_bytes(written)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", [0, -5, "0", "0.2B"])
def test_nothing_is_no_quantity(written: int | str) -> None:
    """Zero and less is not a size."""
    with pytest.raises(ValueError, match="not more than 0 bytes"):
        parse_bytes(written)


def test_absurd_quantity_is_a_number_not_a_crash() -> None:
    """Hundreds of digits stay exact instead of overflowing a float."""
    assert parse_bytes("9" * 400 + "GiB") == (10**400 - 1) * 2**30


@given(st.integers(min_value=1, max_value=2**60), st.sampled_from(["", "B", "KiB", "MiB", "GiB", "KB"]))
def test_whole_numbers_are_exact(number: int, unit: str) -> None:
    """A whole number with a unit is multiplied without rounding."""
    factor = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3}[unit]

    assert parse_bytes(f"{number}{unit}") == number * factor


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_835_008, "1.75 MiB"),
        (200 * 2**20, "200.0 MiB"),
        (15 * 2**30, "15.00 GiB"),
        (-(2**30), "-1.00 GiB"),
        (3 * 2**40, "3.00 TiB"),
    ],
)
def test_size_is_written_for_people(num_bytes: int, text: str) -> None:
    """Sizes are shown with a binary unit and three to four figures."""
    assert format_bytes(num_bytes) == text
