"""A file that is no whole image is refused before anything starts."""

import pytest

from arpo_verl.desktops.vm.image import DISK, MANIFEST, Image
from arpo_verl.errors import ConfigError

WHOLE = b"QFI\xfb" + bytes(12)


def test_a_disk_alone_boots_by_itself_and_ours_by_its_kernel(tmp_path):
    disk = tmp_path / DISK
    disk.write_bytes(WHOLE)
    assert Image.at(disk) == Image(disk)
    assert set(Image.at(disk).files) == {"/image", "/firmware", "/variables"}
    for name in (MANIFEST, "vmlinuz", "initrd.img"):
        assert Image.at(disk) == Image(disk)
        (tmp_path / name).write_text("{}")
    assert Image.at(str(disk)).kernel == tmp_path / "vmlinuz"
    assert set(Image.at(disk).files) == {"/image", "/kernel", "/initrd"}


def test_what_is_no_disk_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must be the machine's \.qcow2 file: .*no-such"):
        Image.at(tmp_path / "no-such.qcow2")
    (tmp_path / "a.qcow2").write_bytes(b"<html>not found</html>")
    with pytest.raises(ConfigError, match=r"must be a \.qcow2 file, but .*a\.qcow2 is not one"):
        Image.at(tmp_path / "a.qcow2")


def test_a_disk_that_names_another_file_is_refused(tmp_path):
    (tmp_path / "a.qcow2").write_bytes(b"QFI\xfb" + bytes(4) + (0x70).to_bytes(8, "big"))
    with pytest.raises(ConfigError, match="has a backing file; make it whole: qemu-img convert"):
        Image.at(tmp_path / "a.qcow2")
    header = bytearray(b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(72))
    header[79] = 4
    (tmp_path / "a.qcow2").write_bytes(header)
    with pytest.raises(ConfigError, match="keeps its data in another file"):
        Image.at(tmp_path / "a.qcow2")
