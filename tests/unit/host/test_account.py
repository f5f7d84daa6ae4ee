"""Accounts of the service: from the system's or a fake host's files, and what they may open."""

import json
import os
import pwd
from pathlib import Path

import pytest

from ascendd.host.account import Account, read_account, refused
from ascendd.host.files import HostFiles


@pytest.fixture
def fake(tmp_path: Path) -> HostFiles:
    """A host with one service user in the driver's group."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nllm:x:990:991::/:/bin/false\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nllm:x:991:\nHwHiAiUser:x:1000:other,llm\nextra:x:1001:\n")
    owners = {"/dev/davinci0": [0, 1000, "0660"], "/dev/davinci1": [0, 0, "0660"], "/dev/davinci2": [0, 0, "0666"]}
    (tmp_path / ".fake-host").write_text(json.dumps({"facts": {"owners": owners}}))
    return HostFiles(str(tmp_path))


def test_an_account_has_its_primary_and_its_supplementary_groups(fake: HostFiles) -> None:
    """Groups come from both files, and from SupplementaryGroups= of the unit where they exist."""
    account = read_account(fake, "llm", ["extra", "gone"])

    assert account is not None
    assert (account.uid, account.gid, account.groups) == (990, 991, ("HwHiAiUser", "extra", "llm"))
    assert read_account(fake, "nobody-here") is None


def test_owner_group_and_mode_decide_where_nothing_can_be_opened_as_somebody_else(fake: HostFiles) -> None:
    """A node of a group of the account, and one that is open to all, can be had; one of root cannot."""
    account = read_account(fake, "llm")
    assert account is not None

    said = refused(fake, account, ["/dev/davinci0", "/dev/davinci1", "/dev/davinci2", "/dev/davinci9"])

    assert said == {"/dev/davinci1": "Permission denied"}


def test_the_systems_own_accounts_are_read(tmp_path: Path) -> None:
    """On a real host the name service answers, and a user may open what is its own."""
    name = pwd.getpwuid(os.getuid()).pw_name
    account = read_account(HostFiles(), name)
    assert account is not None
    path = tmp_path / "node"
    path.touch(0o600)

    said = refused(HostFiles(), account, [str(path)])

    assert (account.uid, said) == (os.getuid(), {})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_root_opens_as_the_account() -> None:
    """The child that opens is the account itself: what only root may write is refused, and a folder is only read."""
    account = Account("nobody", 65534, 65534, (), ())

    said = refused(HostFiles(), account, ["/etc/passwd", "/dev/null"], ["/"])

    assert said == {"/etc/passwd": "Permission denied"}
