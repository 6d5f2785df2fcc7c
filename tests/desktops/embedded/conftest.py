"""One provider of embedded desktops per module, OSWorld's own controllers for its desktop; one to attack."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.desktop_harness import Desktop, attach, running

from arpo_verl.desktops.embedded import users
from arpo_verl.desktops.embedded.provider import EmbeddedProvider


@pytest.fixture(scope="module")
def booted() -> Iterator[EmbeddedProvider]:
    with running() as one:
        yield one.provider


@pytest.fixture
def desktop(booted: EmbeddedProvider) -> Desktop:
    """A clean desktop: the module's, reverted."""
    booted.revert_to_snapshot()
    return attach(booted)


@pytest.fixture(scope="module", params=["another user", "user namespace"])
def attacked(request: pytest.FixtureRequest) -> Iterator[EmbeddedProvider]:
    """A provider as root has it and as others have it."""
    if request.param == "another user" and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_SECRET", "swordfish")
        if request.param == "user namespace":
            patch.setattr(users, "available_ids", lambda: None)
        with running() as one:
            yield one.provider


@pytest.fixture
def jail(attacked: EmbeddedProvider) -> Desktop:
    """A clean desktop to attack: what the last test did to it would spoil this one."""
    attacked.revert_to_snapshot()
    return attach(attacked)
