"""Scratch files of one running store: what does not fit its memory. Gone with the process; checkpoints are others'."""

from __future__ import annotations

from pathlib import Path

from arpo_verl.errors import ReplayError
from arpo_verl.files import ScratchFolder

_KIND = "arpo-replay-"


class SpillFolder:
    """A folder of its own below `parent`; those that killed processes left behind are removed first.

    Raises:
        ReplayError: nothing can be written there.
    """

    def __init__(self, parent: Path | str) -> None:
        try:
            self._folder = ScratchFolder(Path(parent), _KIND)
        except OSError as error:
            raise ReplayError(f"replay.spill_dir must be a folder that can be written to, got {parent}: {error}") from (
                error
            )
        self.path = self._folder.path

    def write(self, name: str, content: bytes) -> None:
        """Keep `content`; not synced, since it need not outlive the process.

        Raises:
            OSError: the disk refuses; nothing is kept.
        """
        path = self.path / name
        try:
            path.write_bytes(content)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes:
        """The content kept under `name`.

        Raises:
            ReplayError: somebody removed it.
        """
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ReplayError(f"a spilled screenshot is gone: {error}; let nothing else clean {self.path}") from error

    def remove(self, name: str) -> None:
        """Forget `name`."""
        (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder; done by itself when the store is dropped or the interpreter ends."""
        self._folder.remove()
