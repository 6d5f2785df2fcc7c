"""The command with the tests' worker: `python on_cpu.py config=... [OPTION=VALUE ...]`."""

import sys

from cpu_worker import CpuWorker

from arpo_verl.easyr1.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], worker=CpuWorker))
