"""The Pythons of this machine."""

import shutil
import subprocess
from pathlib import Path


def find_python(version: str) -> str | None:
    """The path of a Python of this version, such as 3.12, on the PATH or of pyenv; None where there is none."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        # pyenv puts a script on the PATH for every version it knows, also for those that are switched off.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None
