"""Merge several saved stores into one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from arpo_verl.errors import ReplayError
from arpo_verl.replay.store.persistence import Fingerprint, read_manifest, read_records, read_screenshot
from arpo_verl.replay.store.record import NOT_ITS_OWN, read_record
from arpo_verl.replay.store.success_store import StoredRecord, SuccessStore


def merge_stores(folders: Sequence[Path], into: SuccessStore) -> Fingerprint:
    """Add the successes of all `folders` to an empty store, up to its capacity: oldest step first, equal ones once.

    Returns:
        The fingerprint that all of them share.

    Raises:
        ReplayError: one is damaged, or different policies made them.
    """
    manifests = [read_manifest(folder) for folder in folders]
    fingerprint = manifests[0].fingerprint
    for folder, manifest in zip(folders, manifests, strict=True):
        differences = fingerprint.differences(manifest.fingerprint)
        if differences:
            raise ReplayError(
                f"stores to merge must be of one policy, but {folders[0]} and {folder} differ in "
                f"{' and '.join(differences)}; seed a store for each policy from the recorded episodes instead"
            )
    functions = {manifest.reward_function for manifest in manifests if manifest.reward_function}
    into.reward_function = " and ".join(sorted(functions)) or None
    entries: dict[str, tuple[int, int, int, StoredRecord]] = {}
    for number, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):
        for serial, record in read_records(folder, manifest):
            values = read_record(record.record)
            key = json.dumps({name: value for name, value in values.items() if name not in NOT_ITS_OWN}, sort_keys=True)
            entries.setdefault(key, (values["step"], serial, number, record))
    for _, _, number, record in sorted(entries.values(), key=lambda entry: entry[:3]):
        into.add_record(record, partial(read_screenshot, folders[number]))
    return fingerprint
