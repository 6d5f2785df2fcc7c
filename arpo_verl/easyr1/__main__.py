"""Run `python -m arpo_verl.easyr1`."""

from __future__ import annotations

import sys

from arpo_verl.easyr1.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
