"""Save a store as a folder that is never half-written, and refuse to load another policy's store. Pure.

    store.json                    the manifest: version, fingerprint, capacity, records; replaced last, in one step
    trajectories-<sha256>.jsonl   one record a line, in the order in which they would leave the store
    screenshots/<sha256>.<png>    each once, named by its content, never changed

Every other file is named by its content and synced before the manifest names it. So the manifest always names complete
files: those of this save or of the one before. We link screenshots that the store's last save wrote, in any folder, if
they are still intact, instead of writing them again. So folders on one file system share their bytes, and you can
remove or copy each by itself. docs/replay.md describes the format field by field.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from arpo_verl.errors import ReplayError
from arpo_verl.lib import files
from arpo_verl.lib.images import MAX_BYTES
from arpo_verl.lib.untrusted import MOST_BYTES, parse_json, printable, read_regular
from arpo_verl.replay.store.record import decode_values, read_record
from arpo_verl.replay.store.screenshots import screenshot_name
from arpo_verl.replay.store.success_store import StoredRecord, SuccessStore
from arpo_verl.versions import __version__

logger = logging.getLogger(__name__)

FORMAT = "arpo-verl replay store"
VERSION = 6
READABLE_VERSIONS = (1, 2, 3, 4, 5, 6)
"""Version 2 adds the episode to a record, and version 3 the rows (before, each record is one row). Only version 4 says
how often a success was replayed. Before version 5 the manifest has bounds that no longer exist. Version 6 adds the
content of the task to a record, and the reward function to the manifest."""
MANIFEST = "store.json"
SCREENSHOTS = "screenshots"
_TRAJECTORIES = "trajectories-"
_SCREENSHOT_NAME = re.compile(r"[0-9a-f]{64}\.(png|jpg|webp|bin)")

_MOST_MEMORY, _MOST_REWARD = 100_000, 1e18

# The threads wait for the disk, not for the processor.
_WRITERS = 8


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of what stored token ids and screenshots depend on, compared part by part."""

    tokenizer: str
    processor: str
    prompt: str

    def differences(self, other: Fingerprint) -> list[str]:
        """Return the parts in which `other` differs."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return [part for part in mine if mine[part] != theirs[part]]


@dataclass(frozen=True)
class Manifest:
    """The content of `store.json`."""

    fingerprint: Fingerprint
    capacity_per_task: Annotated[int, msgspec.Meta(gt=0)]
    trajectories: Annotated[str, msgspec.Meta(pattern=rf"\A{_TRAJECTORIES}[0-9a-f]{{64}}\.jsonl\Z")]
    """Name of the file with the records."""
    serials: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    """The serial number of each line. They order the trajectories by age, oldest first."""
    saved_at: str
    written_by: str
    reward_function: str | None = None
    """Name and arguments of the reward function of the run that saved it; None before version 6."""
    memory: Annotated[
        tuple[Annotated[float, msgspec.Meta(ge=-_MOST_REWARD, le=_MOST_REWARD)], ...],
        msgspec.Meta(max_length=_MOST_MEMORY),
    ] = ()
    """What the run's replay method kept over steps."""

    def __post_init__(self) -> None:
        if len(set(self.serials)) < len(self.serials):
            raise ValueError("two serials are equal, so their trajectories would become one, under both tasks")
        texts = {**vars(self), "fingerprint": "".join(vars(self.fingerprint).values())}
        if odd := [name for name, text in texts.items() if isinstance(text, str) and not text.isprintable()]:
            raise ValueError(f"{odd[0]} must be printable text")


def save_store(store: SuccessStore, folder: Path | str, fingerprint: Fingerprint) -> None:
    """Write the store into `folder`, over an earlier save if there is one. A kill never leaves a damaged store.

    Raises:
        OSError: the disk refuses; an earlier save is still there.
    """
    folder = Path(folder)
    (folder / SCREENSHOTS).mkdir(parents=True, exist_ok=True)
    entries = list(store.records())
    names = frozenset(name for _, record in entries for name in record.screenshots)
    _save_screenshots(store, folder / SCREENSHOTS, names)
    trajectories = _save_records(folder, [record.record for _, record in entries])
    manifest = Manifest(
        fingerprint=fingerprint,
        capacity_per_task=store.capacity_per_task,
        trajectories=trajectories,
        serials=tuple(serial for serial, _ in entries),
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
        written_by=f"arpo-verl {__version__}",
        reward_function=store.reward_function,
        memory=tuple(one for one in store.memory if abs(one) <= _MOST_REWARD)[-_MOST_MEMORY:],
    )
    files.write_whole(folder / MANIFEST, _manifest_json(manifest))
    files.sync_folder(folder)
    files.sync_folder(folder.parent)
    files.remove_files(folder, (files.PART_PREFIX, _TRAJECTORIES), frozenset({trajectories}))
    files.remove_files(folder / SCREENSHOTS, ("",), names)
    store.saved_in = folder


def load_store(
    folder: Path | str,
    fingerprint: Fingerprint | None,
    into: SuccessStore | None = None,
    leave_out_damaged: bool = False,
) -> SuccessStore:
    """Read a saved store.

    Args:
        fingerprint: that of the policy that will train on it; None skips the check, for tools that only look.
        into: an empty store with this run's capacity, which applies as if the trajectories were added again; None
            uses the saved capacity.
        leave_out_damaged: skip successes whose screenshots are missing or damaged, unless all are.

    Raises:
        ReplayError: there is no store, or it is damaged, of another version or of another policy; `into` stays empty.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if fingerprint is not None:
        check_fingerprint(folder, manifest, fingerprint)
    store = into
    if store is None:
        store = SuccessStore(manifest.capacity_per_task)
    elif len(store):
        raise ReplayError(f"a store must be empty to load into it, but it has {len(store)} trajectories")
    damaged: list[ReplayError] = []
    unbound = 0
    try:
        for serial, record in read_records(folder, manifest):
            unbound += not read_record(record.record).get("task_content")
            try:
                store.add_record(record, lambda name: read_screenshot(folder, name), serial)
            except ReplayError as error:
                damaged.append(error)
                if not leave_out_damaged or len(damaged) == len(manifest.serials):
                    raise
    except ReplayError:
        store.clear()
        raise
    if damaged:
        counts = (len(damaged), len(manifest.serials), folder)
        logger.warning("left out %d of the %d successes in %s, with damaged screenshots: %s", *counts, damaged[0])
    if unbound and fingerprint is not None:
        logger.warning(
            "%d of the %d successes in %s are not replayed: they do not say which content of their task they solved, "
            "since an earlier version saved them; seed a store from new episodes",
            *(unbound, len(manifest.serials), folder),
        )
    if store.reward_function not in (None, manifest.reward_function):
        logger.warning(
            "the rewards in %s are of %s, this run's of %s: a success is replayed only where its reward is above its "
            "group's",
            *(folder, manifest.reward_function or "an unknown function", store.reward_function),
        )
    store.memory[:] = manifest.memory
    store.saved_in = folder
    return store


def read_manifest(folder: Path | str) -> Manifest:
    """Read what a folder's store is, without its trajectories.

    Raises:
        ReplayError: there is no store, or it is damaged or of another version.
    """
    path = Path(folder) / MANIFEST
    try:
        values = parse_json(read_regular(path))
    except FileNotFoundError as error:
        raise ReplayError(f"a saved replay store must have a {MANIFEST}, but {folder} has none") from error
    except (OSError, ValueError) as error:
        raise ReplayError(f"{path} must be a replay store's manifest, but cannot be read: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ReplayError(f'{path} must be a replay store\'s manifest, with "format": "{FORMAT}"')
    if values.get("version") not in READABLE_VERSIONS:
        known = " or ".join(map(str, READABLE_VERSIONS))
        raise ReplayError(
            f"{path} must be of version {known}, got {values.get('version')!r:.80}, written by "
            f"{printable(str(values.get('written_by')))[:80]}; read it with that version of arpo-verl"
        )
    if values.pop("checksum", None) != _checksum(values):
        raise ReplayError(f"{path} is damaged: its checksum does not match; take an earlier checkpoint's store")
    try:
        return msgspec.convert(values, Manifest)
    except ValueError as error:
        raise ReplayError(
            f"{path} must be a replay store's manifest, but arpo-verl writes another: {error}; use another store, or "
            "ask its owner to save it again"
        ) from error


def check_fingerprint(folder: Path | str, manifest: Manifest, expected: Fingerprint) -> None:
    """Refuse the store in `folder` if it was saved for another policy.

    Raises:
        ReplayError: names the parts that differ.
    """
    saved = manifest.fingerprint
    differences = expected.differences(saved)
    if differences:
        parts = "; ".join(
            f"{part} {getattr(expected, part)} expected, {getattr(saved, part)} got" for part in differences
        )
        raise ReplayError(
            f"the replay store in {folder} was made with another {' and another '.join(differences)} ({parts}): its "
            "tokens would mean something else to this policy; use the model and prompt that made it, or seed "
            "a new store from the recorded episodes with `arpo-verl replay seed`"
        )


def read_records(folder: Path | str, manifest: Manifest) -> Iterator[tuple[int, StoredRecord]]:
    """Yield the saved records with their serials, in the order in which they would leave the store. Each is checked,
    except for its screenshots.

    Raises:
        ReplayError: the file is missing or damaged, or a record is not a success.
    """
    path = Path(folder) / manifest.trajectories
    content = _read(path)
    lines = content.splitlines()
    if path.name != _records_name(content) or len(lines) != len(manifest.serials):
        raise ReplayError(f"{path} is damaged: its checksum does not match; take an earlier checkpoint's store")
    for number, (serial, line) in enumerate(zip(manifest.serials, lines, strict=True), 1):
        try:
            values = read_record(line)
            for name in values["screenshots"]:
                screenshot_path(folder, name)
            decode_values(values, lambda name: b"")
        except ReplayError as error:
            raise ReplayError(f"line {number} of {path}: {printable(str(error))[:500]}") from error
        yield serial, StoredRecord(values["task_id"], line, tuple(values["screenshots"]))


def screenshot_path(folder: Path | str, name: str) -> Path:
    """Return the path of a saved screenshot.

    Raises:
        ReplayError: the name, which comes from a record, is not one of a store's screenshots.
    """
    if not _SCREENSHOT_NAME.fullmatch(name):
        raise ReplayError(f"a screenshot of a store must be named by its SHA-256, got {name!r:.80} in {folder}")
    return Path(folder) / SCREENSHOTS / name


def read_screenshot(folder: Path | str, name: str) -> bytes:
    """Read a saved screenshot.

    Raises:
        ReplayError: it is missing or damaged.
    """
    path = screenshot_path(folder, name)
    content = _read(path, MAX_BYTES)
    if screenshot_name(content) != name:
        raise ReplayError(f"{path} is damaged: its checksum does not match; take an earlier checkpoint's store")
    return content


def _is_whole(path: Path) -> bool:
    """Return whether the file's content fits its name."""
    try:
        return screenshot_name(read_regular(path, MAX_BYTES)) == path.name
    except OSError:
        return False


def _read(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    try:
        return read_regular(path, most_bytes)
    except OSError as error:
        raise ReplayError(
            f"the replay store in {path.parent} is not complete: {error}; copy the folder with all its files"
        ) from error


def _save_screenshots(store: SuccessStore, folder: Path, names: frozenset[str]) -> None:
    saved_before = None if store.saved_in is None else store.saved_in / SCREENSHOTS

    def save(name: str) -> None:
        # A linked file would share any damage since it was written, so we check it first.
        source = None if saved_before is None else saved_before / name
        if source is None or not _is_whole(source) or not files.link_whole(source, folder / name):
            files.write_whole(folder / name, store.screenshot(name))

    missing = sorted(name for name in names if not _is_whole(folder / name))
    with ThreadPoolExecutor(_WRITERS) as threads:
        for _ in threads.map(save, missing):
            pass
    files.sync_folder(folder)


def _save_records(folder: Path, records: Sequence[bytes]) -> str:
    """Write the lines; return the file's name."""
    lines = b"".join(record + b"\n" for record in records)
    name = _records_name(lines)
    files.write_whole(folder / name, lines)
    files.sync_folder(folder)
    return name


def _records_name(lines: bytes) -> str:
    return f"{_TRAJECTORIES}{sha256(lines).hexdigest()}.jsonl"


def _manifest_json(manifest: Manifest) -> bytes:
    values: dict[str, Any] = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(manifest)}
    return json.dumps({**values, "checksum": _checksum(values)}, indent=1).encode("ascii") + b"\n"


def _checksum(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()
