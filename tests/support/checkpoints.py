"""Checkpoints as veRL's FSDP workers leave them: the files and their names, with next to nothing in them."""

import json
import zipfile
from pathlib import Path

KINDS = ("model", "optim", "extra_state")


def write_shards(checkpoint: Path, ranks: int = 1, fsdp_version: int = 2) -> None:
    """The actor's part of a checkpoint that so many processes wrote."""
    actor = checkpoint / "actor"
    actor.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for rank in range(ranks):
            with zipfile.ZipFile(actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt", "w") as archive:
                archive.writestr("data.pkl", b"")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": fsdp_version, "world_size": ranks}))
