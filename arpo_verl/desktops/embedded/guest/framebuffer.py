"""Map the X server's frame buffer, to read the screen without asking the server."""

from __future__ import annotations

import mmap
import struct

from . import layout

BYTES_A_PIXEL = 4
_HEADER = struct.Struct(">25I")  # XWDFileHeader of X11/XWDFile.h


class Framebuffer:
    """The screen's pixels, each blue, green, red and an unused byte.

    Raises:
        RuntimeError: the X server uses another format.
    """

    def __init__(self) -> None:
        with open(layout.FRAMEBUFFER, "rb") as file:
            self._buffer = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        fields = _HEADER.unpack_from(self._buffer)
        size, depth, width, height, bits, self.stride, colors = (fields[i] for i in (0, 3, 4, 5, 11, 12, 19))
        if (depth, bits) != (24, 8 * BYTES_A_PIXEL):
            raise RuntimeError(f"the frame buffer must have 24 of 32 bits a pixel, got {depth} of {bits}")
        self.size, self._offset = (width, height), size + colors * 12

    def pixels(self) -> bytes:
        """Return all pixels, row by row, each row `stride` bytes."""
        return self._buffer[self._offset : self._offset + self.stride * self.size[1]]

    def part(self, left: int, top: int, right: int, bottom: int) -> bytes:
        """Return a rectangle's pixels, as far as it is on the screen."""
        left, right = (BYTES_A_PIXEL * min(max(x, 0), self.size[0]) for x in (left, right))
        rows = range(max(top, 0), min(bottom, self.size[1]))
        begins = [self._offset + self.stride * row for row in rows]
        return b"".join(self._buffer[begin + left : begin + right] for begin in begins)
