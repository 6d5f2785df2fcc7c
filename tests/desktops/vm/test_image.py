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


OTHER_DATA = b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(71) + b"\4"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"must be the machine's \.qcow2 file: .*disk"),
        (b"<html>not found</html>", r"must be a \.qcow2 file, but .*disk\.qcow2 is not one"),
        (b"QFI\xfb" + bytes(4) + (0x70).to_bytes(8, "big"), "has a backing file; make it whole: qemu-img convert"),
        (OTHER_DATA, "keeps its data in another file"),
    ],
    ids=["none", "a page", "backing file", "data file"],
)
def test_what_is_no_whole_disk_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / DISK).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Image.at(tmp_path / DISK)
