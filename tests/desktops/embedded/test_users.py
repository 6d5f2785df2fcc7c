"""Users of desktops: no two desktops of a machine share one, whatever process made them and however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from support.desktop_harness import eventually

from arpo_verl.desktops.embedded import users
from arpo_verl.desktops.embedded.guest_process import GuestProcess
from arpo_verl.errors import DesktopBootError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

HOLDER = """
import secrets, sys
secrets.randbelow = lambda count: 0
from arpo_verl.desktops.embedded import users
claims = [users.UserClaim(range(61_000, 61_004)) for _ in range(2)]
print(*[claim.user_id for claim in claims], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def same_dice(monkeypatch, tmp_path):
    """Every draw is the same, as it was for 87% of 128 desktops."""
    monkeypatch.setattr(users.secrets, "randbelow", lambda count: 0)
    monkeypatch.setattr(users, "_FOLDERS", (str(tmp_path / "locks"),))


def test_claims_of_all_processes_differ_and_end_with_their_holder(tmp_path):
    source = HOLDER.replace("\nclaims", f"\nusers._FOLDERS = ({str(tmp_path / 'locks')!r},)\nclaims")
    with subprocess.Popen([sys.executable, "-c", source], stdin=-1, stdout=-1, text=True) as holder:
        theirs = list(map(int, holder.stdout.readline().split()))
        ours = [users.UserClaim(range(61_000, 61_004)) for _ in range(2)]
        assert len({*theirs, *(claim.user_id for claim in ours)}) == 4
        with pytest.raises(DesktopBootError, match="all 4 users"):
            users.UserClaim(range(61_000, 61_004))
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        after = [users.UserClaim(range(61_000, 61_004)) for _ in range(2)]
        assert [claim.user_id for claim in after] == theirs
        ours[0].close()
        ours[0].close()
        assert users.UserClaim(range(61_000, 61_004)).user_id == ours[0].user_id


def test_folder_that_others_can_open_is_not_used(monkeypatch, tmp_path):
    opened, own = tmp_path / "opened", tmp_path / "own"
    opened.mkdir(mode=0o755)
    monkeypatch.setattr(users, "_FOLDERS", (str(opened), str(own)))
    assert users._folder() == own and own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o711)
    with pytest.raises(DesktopBootError, match="mode 0700"):
        users._folder()


@pytest.mark.desktop
def test_two_desktops_run_as_two_users_and_give_them_back():
    guests = [GuestProcess(), GuestProcess()]
    ids = [_user_of(guest) for guest in guests]
    assert len(set(ids)) == 2 and 0 not in ids
    guests[0].close()
    again = GuestProcess()
    assert _user_of(again) == ids[0]
    for guest in (*guests, again):
        guest.close()


def _user_of(guest: GuestProcess) -> int:
    """Of process 1, by the kernel's word. It becomes that user a moment after it began."""
    return eventually(lambda: psutil.Process(guest._process.pid).uids().real)
