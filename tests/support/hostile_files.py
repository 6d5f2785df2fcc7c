"""What somebody else may put where a file is expected, and a store that was changed by somebody who can sign it."""

import json
import os
from hashlib import sha256

from arpo_verl.lib.untrusted import MOST_BYTES
from arpo_verl.replay.store.persistence import MANIFEST


def _sparse(path):
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)


KINDS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": os.mkdir,
    "huge": _sparse,
    "circle": lambda path: path.symlink_to(path.name),
}
"""Each puts one of them at a path, where nothing is."""


def replace(path, kind):
    """Put one of `KINDS` where a file was."""
    path.unlink()
    KINDS[kind](path)


def forge_store(folder, records=None, **manifest):
    """Change a saved store so that every checksum holds.

    Args:
        records: takes the records, as a list of objects, and changes them in place.
        manifest: fields of the manifest with other values.
    """
    values = json.loads((folder / MANIFEST).read_text())
    path = folder / values["trajectories"]
    objects = [json.loads(line) for line in path.read_bytes().splitlines()]
    if records is not None:
        records(objects)
    content = b"".join(json.dumps(one).encode() + b"\n" for one in objects)
    path.unlink()
    values["trajectories"] = f"trajectories-{sha256(content).hexdigest()}.jsonl"
    (folder / values["trajectories"]).write_bytes(content)
    values |= manifest
    values.pop("checksum")
    checksum = sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps({**values, "checksum": checksum}))
