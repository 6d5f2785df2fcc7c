"""The tree of accessible objects, for evaluators that read it: of the programs that `programs/` starts accessible."""

from __future__ import annotations

import os
import subprocess
from http import HTTPStatus

from .messages import Request, Response

PYTHON = "/usr/bin/python3"
SCRIPT = os.path.join(os.path.dirname(__file__), "atspi_tree.py")
TIMEOUT_S = 60.0


def tree(request: Request) -> Response:
    """OSWorld's answer to GET /accessibility."""
    done = subprocess.run([PYTHON, "-I", SCRIPT], capture_output=True, timeout=TIMEOUT_S)
    if done.returncode == 0:
        return Response.json({"AT": done.stdout.decode()})
    words = done.stderr.decode(errors="replace")[-500:]
    return Response.error(
        HTTPStatus.NOT_IMPLEMENTED,
        "the accessibility tree needs the system's packages python3-gi, gir1.2-atspi-2.0 and at-spi2-core; "
        f"without them construct DesktopEnv with require_a11y_tree=False: {words}",
    )
