"""What `arpo-verl train` says of a trainer that ended."""

import re

import pytest

from arpo_verl.tools.cli.trainer_process import explain_end

NO_HUB = (
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached"
)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("OSError: [Errno 28] No space left on device: '/runs/a'", "a disk is full (.* MiB left; .*); free some space"),
        (
            NO_HUB,
            "org/model is not on this machine, and the model hub cannot be reached; .* `hf download org/model --local-",
        ),
        ("Failed to connect to GCS within 60 seconds. GCS may have been killed.", "Ray's head process ended, .* again"),
        ("RuntimeError: EADDRINUSE: Address already in use", "another program uses a port that the run needs"),
    ],
)
def test_a_common_cause_is_told_with_what_to_do(tmp_path, line, told):
    (found,) = explain_end(["Traceback", line, "more"], tmp_path, "org/model")
    assert re.search(told, found)


def test_any_other_end_is_left_to_its_own_words(tmp_path):
    assert explain_end(["RuntimeError: the worker died"], tmp_path, "org/model") == []
