"""What every command has in common."""

import errno

import pytest

from arpo_verl.cli import convert, main


@pytest.mark.parametrize(
    "error", [NotADirectoryError(errno.ENOTDIR, "Not a directory", "/x/y"), OSError(errno.ENOSPC, "full")]
)
def test_what_the_file_system_refuses_is_told_in_one_line(monkeypatch, capsys, error):
    monkeypatch.setattr(convert, "run", _raising(error))
    assert main.main(["convert", "a.sh"]) == 2
    assert capsys.readouterr().err == f"arpo-verl: {error}\n"


def test_any_other_error_of_the_system_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(convert, "run", _raising(ConnectionResetError(errno.ECONNRESET, "reset")))
    with pytest.raises(ConnectionResetError):
        main.main(["convert", "a.sh"])


def _raising(error):
    def run(args):
        raise error

    return run
