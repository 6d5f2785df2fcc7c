"""Pictures of a desktop are decoded within bounds, in one place."""

import io
import re
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image, ImageOps

import arpo_verl
from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.errors import DesktopLostError, ImageError
from arpo_verl.lib import images
from arpo_verl.lib.images import image_size, read_image
from arpo_verl.records.film_strip import Frame, thumbnail


def picture(kind="PNG", size=(30, 20)):
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, kind)
    return buffer.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width=11_000, height=11_000):
    """A PNG of 484 MB in RGBA, from 2 MB."""
    packer = zlib.compressobj(1)
    row = bytes(1 + 4 * width)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def many_scans(extra):
    """A JPEG whose decoder goes over all of its pixels `extra` times more than it needs to, for 50 bytes each."""
    buffer = io.BytesIO()
    Image.new("L", (800, 600)).save(buffer, "JPEG", progressive=True)
    whole = buffer.getvalue()
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + extra * whole[last:-2] + whole[-2:]


def many_profiles(number):
    """A PNG whose header unpacks to `number` MB."""
    whole = picture()
    first = whole.index(b"IDAT") - 4
    profile = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(2**20 - 1), 9))
    return whole[:first] + number * profile + whole[first:]


HOSTILE = {
    "nothing": lambda: b"",
    "a page": lambda: b"<html>502 Bad Gateway</html>",
    "half of it": lambda: picture(size=(300, 200))[:400],
    "a broken chunk": lambda: picture().replace(b"IDAT", b"IDA\xff"),
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
    "a GIF": lambda: picture("GIF"),
    "a TIFF": lambda: picture("TIFF"),
    "more bytes than any screen": lambda: picture() + bytes(images.MAX_BYTES),
    "more pixels than any screen": lambda: bomb(),
    "a line": lambda: picture(size=(2010, 10)),
    "more scans than any encoder writes": lambda: many_scans(100),
    "more profiles than one": lambda: many_profiles(9),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_picture_of_a_screen_is_refused_everywhere(case, monkeypatch):
    sent, decoded = HOSTILE[case](), []
    load = Image.Image.load
    monkeypatch.setattr(Image.Image, "load", lambda image: decoded.append(image.size) or load(image))
    with pytest.raises(ImageError):
        read_image(sent)
    with pytest.raises(DesktopLostError, match="must send a PNG or JPEG"):
        decode_screenshot(sent)
    assert thumbnail(Frame(sent, ""), 32).size == (32, 24)
    assert all(width * height <= images.MAX_PIXELS for width, height in decoded)


def test_shapes_and_scans_that_are_none_of_a_bombs_are_read():
    assert read_image(picture(size=(2000, 10))).size == (2000, 10)
    assert read_image(many_scans(20)).size == (800, 600)
    assert read_image(many_profiles(1)).size == (30, 20)


@pytest.mark.parametrize("kind", images.KEPT)
def test_what_a_desktop_sends_and_the_store_keeps_is_read(kind, monkeypatch):
    assert read_image(picture(kind)).mode == "RGB"
    sent = picture(kind)
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("decoded"))
    assert image_size(sent) == (30, 20)


def test_no_other_module_of_the_host_opens_a_picture():
    """But OSWorld's metrics, which do so in a sandbox of their own."""
    package = Path(arpo_verl.__file__).parent
    opening = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"Image\.(open|frombytes|frombuffer)\(", path.read_text()) and "guest" not in path.parts
    }
    assert opening == {"lib/images.py", "desktops/osworld/verdict/mended_metrics.py"}


def test_a_lazy_image_is_decoded_when_a_pixel_is_asked_for_and_not_before():
    data, reads = picture(), []

    def read():
        reads.append(1)
        return data

    image = images.LazyImage(image_size(data), images.content_id(data), read)
    assert (image.size, image.mode, images.content_of(image)) == ((30, 20), "RGB", images.content_id(data).bytes)
    copied = ImageOps.exif_transpose(image)  # as a new vLLM does with each
    assert not reads and images.content_id(data) != images.content_id(picture(size=(30, 21)))
    assert (copied.size, images.content_of(copied)) == (image.size, images.content_id(data).bytes)
    assert image.tobytes() == image.convert("RGB").tobytes() == read_image(data).tobytes()
    assert len(reads) == 1 and image.resize((3, 2)).size == (3, 2)
    assert images.content_of(read_image(data)) == image.tobytes(), "of a picture without an id, the pixels"


def test_a_lazy_image_of_a_broken_file_is_refused_as_any_other():
    data = picture()
    image = images.LazyImage(image_size(data), images.content_id(data), lambda: data[:-30])
    with pytest.raises(ImageError, match="broken"):
        image.tobytes()


@pytest.mark.parametrize("head", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8"], ids=["png", "jpeg"])
def test_a_picture_of_many_tiny_parts_is_refused_before_it_is_read(head):
    part = struct.pack(">I4sI", 0, b"prIv", 0) if head[0] == 0x89 else b"\xff\xfe\0\2"
    with pytest.raises(ImageError, match="at most 20000 chunks"):
        image_size(head + part * 30_000)
