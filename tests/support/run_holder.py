"""Another trainer that uses a run's folder."""

import subprocess
import sys

from support import ROOT

HOLDER = """
import sys, time
from pathlib import Path
from arpo_verl.records.run_lock import hold_run

hold_run(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def start_holder(run_dir):
    """A process that trains in this folder, as far as another one can see."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run_dir], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    return holder
