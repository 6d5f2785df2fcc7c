"""The file in which people can read what the pool is at."""

import asyncio
import json

from support.desktop_harness import until

from arpo_verl.desktops.pool import status_file
from arpo_verl.desktops.pool.status_file import StatusFile


def run_beside(status, script):
    """Run `script`, a coroutine, while the file is kept."""

    async def run():
        keeping = asyncio.create_task(status.run())
        try:
            return await script
        finally:
            keeping.cancel()

    return asyncio.run(run())


def test_it_is_written_when_something_changed_and_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(status_file, "INTERVAL_S", 0.005)
    path, state, writes, written_at, looks = tmp_path / "run" / "pool.json", {"waiting": 0}, [], [], []

    class Observed(StatusFile):
        def _write(self, document):
            writes.append(document)
            written_at.append(self._written_at)
            super()._write(document)

    def read():
        looks.append(1)
        return dict(state)

    async def script():
        await until(lambda: len(looks) > 5)
        assert [document["waiting"] for document in writes] == [0]
        state["waiting"] = 3
        await until(lambda: len(writes) == 2)
        await until(lambda: json.loads(path.read_text())["waiting"] == 3)
        monkeypatch.setattr(status_file, "HEARTBEAT_S", 0.05)
        await until(lambda: len(writes) > 3)

    run_beside(Observed(path, read), script())
    # By the clock that the beats are timed by: the documents' own times are taken a moment later, now more, now less.
    assert all(later - earlier >= 0.05 for earlier, later in zip(written_at[1:], written_at[2:], strict=False))
    assert [document["time"] for document in writes] == sorted(document["time"] for document in writes)
    assert [file.name for file in path.parent.iterdir()] == ["pool.json"]


def test_a_disk_that_refuses_is_told_once_and_tried_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(status_file, "INTERVAL_S", 0.005)
    monkeypatch.setattr(status_file, "HEARTBEAT_S", 0.0)
    folder, looks = tmp_path / "run", []
    folder.write_text("a file")

    async def script():
        await until(lambda: len(looks) > 5)
        folder.unlink()
        await until(lambda: (folder / "pool.json").exists())

    run_beside(StatusFile(folder / "pool.json", lambda: {"looks": looks.append(1)}), script())
    assert caplog.text.count("cannot write the pool's state") == 1
