"""A desktop of somebody's own, whose screen is not the one that was asked for."""

from arpo_verl.desktops.fake import FakeEnvironment
from arpo_verl.types import Size


def make(config, name):
    """For `provider="support.wide_desktop:make"`."""
    return FakeEnvironment(screen_size=Size(800, 600))
