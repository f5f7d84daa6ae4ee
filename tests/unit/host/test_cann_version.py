"""CANN, driver and firmware versions are ordered, and ranges as the vendor writes them are understood."""

import itertools

import pytest

from ascendd.host.cann_version import in_ranges, matches_pattern, parse_ranges, parse_version

ASCENDING = """
    6.3.RC3 6.3.RC3.1 7.0.RC1.alpha001 7.0.RC1 7.0.0 7.0.0.H99 7.0.0.H100 7.0.1 8.0.RC2.alpha001 8.0.RC2 8.0.RC3 8.0.RC3.10
    8.0.0 8.1.RC1 8.2.RC1 8.3.RC1 8.3.RC2 8.5.0.alpha001 8.5.0 8.5.0.2.220 8.5.0.H1 8.5.1 9.0.0 9.1.0-beta.3 9.1.0
""".split()  # noqa: SIM905 - a table reads better than a list of quotes


def test_versions_stand_in_the_order_of_their_release() -> None:
    """Every pair of the list compares as it stands: pre-releases, hotfixes, patches and five parts."""
    versions = [parse_version(text) for text in ASCENDING]

    assert None not in versions
    for earlier, later in itertools.combinations(versions, 2):
        assert earlier < later, f"{earlier} < {later}"
        assert not later < earlier


def test_case_and_spelling_do_not_matter() -> None:
    """Drivers write rc, CANN writes RC; both compare equal and hash alike."""
    assert parse_version("8.0.rc3") == parse_version("8.0.RC3")
    assert len({parse_version("9.1.0-beta.3"), parse_version("9.1.0.beta3")}) == 1


@pytest.mark.parametrize("text", ["8.1.T18", "7.6.T13.0.B094"])
def test_internal_builds_parse_without_a_rank(text: str) -> None:
    """T builds are known as such, so that nobody takes their order for granted."""
    version = parse_version(text)

    assert version is not None
    assert not version.is_ranked


@pytest.mark.parametrize(
    "text",
    [
        "23.0.2.1",
        "24.1.rc2.2",
        "25.0.rc1.1",
        "25.3.rc1.b020",
        "24.1.0.b062",
        "7.1.0.3.220",
        "24.1.rc3.b110",
        "8.0.0_sph001",
    ],
)
def test_every_form_seen_in_public_parses(text: str) -> None:
    """Build and patch tags never spoil a version."""
    version = parse_version(text)

    assert version is not None
    assert version.is_ranked


@pytest.mark.parametrize("text", ["", "8", "latest", "CANN 8.0.0", "8.0.RC"])
def test_other_text_is_no_version(text: str) -> None:
    """What has none of the forms is None, not an exception."""
    assert parse_version(text) is None


@pytest.mark.parametrize(
    ("version", "ranges", "expected"),
    [
        ("7.5.0.1.129", "[7.0.0,7.5.99]", True),
        ("7.5.99.1.100", "[7.0.0,7.5.99]", True),
        ("7.6.0.1.100", "[7.0.0,7.5.99]", False),
        ("6.4.12.1.241", "[6.4.0,6.4.99],[7.0.0,7.7.99]", True),
        ("6.5.0", "[6.4.0,6.4.99],[7.0.0,7.7.99]", False),
        ("24.1.rc3", "[23.0.0,23.0.0.],[24.0,24.0.],[24.1,24.1.]", True),
        ("24.1.0.b062", "[24.1,24.1.]", True),
        ("25.0.rc1", "[23.0.0,23.0.0.],[24.0,24.0.],[24.1,24.1.]", False),
        ("23.0.rc3", "[23.0.rc3,23.0.rc3.]", True),
        ("anything", "[7.0.0,7.5.99]", False),
        ("7.0.0", "", False),
    ],
)
def test_the_vendors_ranges(version: str, ranges: str, expected: bool) -> None:
    """Closed ranges, several of them, and upper bounds that end with a dot."""
    assert in_ranges(version, parse_ranges(ranges)) is expected


@pytest.mark.parametrize(
    ("version", "pattern", "expected"),
    [
        ("25.5.1", "25.5.X", True),
        ("25.0.rc1.1", "25.0.RC1", True),
        ("25.5.1", "25.5.2", False),
        ("25.50.1", "25.5.X", False),
    ],
)
def test_patterns_of_the_release_notes(version: str, pattern: str, expected: bool) -> None:
    """A last part X takes in all; without it the parts that are given must be equal."""
    assert matches_pattern(version, pattern) is expected
