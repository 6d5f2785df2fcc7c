"""An archive as GitHub makes it of OSWorld's commit, with three tasks of ours in the place of OSWorld's 369."""

import hashlib
import io
import json
import tarfile

from arpo_verl.tasks import osworld_files
from arpo_verl.versions import OSWORLD_COMMIT

INDEX = osworld_files.INDEX


def task(task_id):
    """A task that any desktop can run."""
    evaluator = {"func": "exact_match", "result": {"type": "vm_command_line", "command": "true"}}
    return json.dumps({"id": task_id, "instruction": f"Do {task_id}.", "config": [], "evaluator": evaluator}).encode()


LISTED = {"os": ["a", "b"], "gimp": ["c"]}
TASKS = {f"examples/{domain}/{one}.json": task(one) for domain, ids in LISTED.items() for one in ids}
FILES = {INDEX: json.dumps(LISTED).encode(), **TASKS}


def publish(monkeypatch, index=FILES[INDEX]):
    """Take an index of ours for the pinned one."""
    monkeypatch.setattr(osworld_files, "INDEX_SHA256", hashlib.sha256(index).hexdigest())


def packed(changed=None, commit=OSWORLD_COMMIT):
    """The archive's bytes; `changed` has other contents, None for a file that is left out, or a member of its own."""
    headers = {"comment": commit} if commit else {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        for name, content in {**FILES, **(changed or {})}.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            elif content is not None:
                member = tarfile.TarInfo(f"OSWorld/evaluation_examples/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
