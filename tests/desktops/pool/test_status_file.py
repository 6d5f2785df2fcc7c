"""The file in which people can read what the pool is at."""

import asyncio
import json

from support.desktop_harness import until

from arpo_verl.desktops.pool import status_file
from arpo_verl.desktops.pool.status_file import keep_status_file


def run_beside(keep, script):
    """Run `script`, a coroutine, while the file is kept."""

    async def run():
        keeping = asyncio.create_task(keep)
        try:
            return await script
        finally:
            keeping.cancel()

    return asyncio.run(run())


def test_it_is_written_when_something_changed_and_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(status_file, "INTERVAL_S", 0.005)
    path, state, writes, looks = tmp_path / "run" / "pool.json", {"waiting": 0}, [], []
    write = status_file.write_whole

    def note(path, content, sync):
        writes.append(json.loads(content))
        write(path, content, sync=sync)

    monkeypatch.setattr(status_file, "write_whole", note)

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

    run_beside(keep_status_file(path, read), script())
    assert len(looks) > len(writes)
    times = [document["time"] for document in writes]
    assert times == sorted(times)
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

    run_beside(keep_status_file(folder / "pool.json", lambda: {"looks": looks.append(1)}), script())
    assert caplog.text.count("cannot write the pool's state") == 1
