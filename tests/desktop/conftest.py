"""One embedded desktop per module, and OSWorld's own controllers for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.desktop_harness import Desktop, attach

from arpo_verl.desktop.provider import EmbeddedProvider


@pytest.fixture(scope="module")
def booted() -> Iterator[EmbeddedProvider]:
    provider = EmbeddedProvider()
    provider.start_emulator()
    yield provider
    provider.stop_emulator()


@pytest.fixture
def desktop(booted: EmbeddedProvider) -> Desktop:
    """A clean desktop: the module's, reverted."""
    booted.revert_to_snapshot()
    return attach(booted)
