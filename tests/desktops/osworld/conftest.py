"""OSWorld's client on a scripted guest."""

import pytest


@pytest.fixture
def guest():
    pytest.importorskip("desktop_env")
    from support.scripted_guest import Guest

    return Guest()


@pytest.fixture
def scripted(guest, tmp_path):
    """Makes environments of the guest, in their short and small form."""
    from support.scripted_guest import SIZE

    from arpo_verl.desktops.config import EnvironmentConfig
    from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

    made = []

    class Scripted(OSWorldEnvironment):
        def _make_provider(self):
            return guest

    def build(**options):
        options = {"screen_size": SIZE, "action_pause_s": 0, "cache_dir": str(tmp_path / "store")} | options
        made.append(Scripted(EnvironmentConfig(**options)))
        return made[-1]

    yield build
    for environment in made:
        environment.close()
