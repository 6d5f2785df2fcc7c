"""The lock on a run's folder, against another process."""

import errno

import pytest
from support.run_holder import start_holder

from arpo_verl.errors import ConfigError
from arpo_verl.lib import file_lock
from arpo_verl.records import run_lock


def test_a_run_folder_that_is_in_use_is_found_without_taking_it(tmp_path):
    run_lock.check_free(tmp_path)
    with start_holder(tmp_path) as holder:
        with pytest.raises(ConfigError, match=rf"another trainer uses .* \(process {holder.pid} on"):
            run_lock.check_free(tmp_path)
        holder.kill()
    run_lock.check_free(tmp_path)


def test_where_there_are_no_locks_the_run_is_warned_and_goes_on(tmp_path, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", no_locks)
    run_lock.hold_run(tmp_path / "run")
    assert "has no file locks" in caplog.text
