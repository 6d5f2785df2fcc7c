"""For the tests that need stock EasyR1: `make test-easyr1` runs them in its environment, elsewhere they are skipped."""

import pytest

from arpo_verl.versions import another_verl


def require_easyr1():
    """Skip this module where `import verl` does not find EasyR1."""
    if another_verl() != "EasyR1":
        pytest.skip("needs the environment of `make easyr1 EASYR1_HOME=FOLDER`", allow_module_level=True)
