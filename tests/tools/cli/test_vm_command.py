"""The words of `arpo-verl vm`, before a machine starts."""

import pytest

from arpo_verl.tools.cli.main import main


@pytest.mark.parametrize(
    ("screen", "message"),
    [
        ("640", "--screen must be WIDTHxHEIGHT, got '640'"),
        ("0x0", "environment.screen_size must be between [200, 150] and [7680, 4320], got [0, 0]"),
    ],
)
def test_a_screen_that_no_machine_can_show_is_told_before_it_boots(tmp_path, capsys, screen, message):
    disk = tmp_path / "disk.qcow2"
    disk.write_bytes(b"QFI\xfb" + bytes(12))
    assert (
        main(["vm", "template", str(disk), "--screen", screen, "--vm", f"folder={tmp_path}", "--vm", "binary=no"]) == 2
    )
    assert message in capsys.readouterr().err
