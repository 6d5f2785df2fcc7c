"""An embedded desktop whose verdict fails where a test asks for it."""

import itertools
import os
from dataclasses import replace

from arpo_verl.desktops.osworld.environment import OSWorldEnvironment
from arpo_verl.errors import EvaluatorError

COUNTED = "EASYR1_TEST_VERDICTS"
"""Names a folder in which the verdicts of all desktops are counted."""
FAILING = "EASYR1_TEST_FAILING"
"""The numbers of those that fail, from 1, as `1,5`."""


class FaultyDesktop(OSWorldEnvironment):
    def __init__(self, config, name):
        super().__init__(replace(config, provider="embedded"), name)

    def evaluate(self):
        number = _next_number(os.environ[COUNTED])
        if str(number) in os.environ[FAILING].split(","):
            raise EvaluatorError(f"verdict {number} fails on purpose")
        return super().evaluate()


def _next_number(folder):
    for number in itertools.count(1):
        try:
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            pass
