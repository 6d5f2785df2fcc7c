"""What a worker and a sandbox exchange: bounded frames of JSON after their length, and descriptors.

We use no pickle, because the author of hostile data may have written what comes out of a sandbox.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

MAX_FRAME_BYTES = 1 << 20
MAX_REQUEST_BYTES = 1 << 26
MAX_TEXT = 4000
"""Most characters of an error's message."""
_LENGTH = struct.Struct(">I")
_DESCRIPTORS = 64
"""Descriptors sent at once; the kernel takes up to 253."""


class BadMessage(ValueError):
    """The other end sent something that the protocol does not allow."""


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one frame.

    Raises:
        OSError: the other end is gone.
    """
    content = json.dumps(message, allow_nan=False).encode()
    channel.sendall(_LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket, limit: int, deadline: float = math.inf) -> dict[str, Any] | None:
    """Return the next frame; None if the other end closed before it began.

    Args:
        limit: most bytes of its content.
        deadline: when the whole frame must be here, by the monotonic clock.

    Raises:
        BadMessage: it is longer than `limit`, cut off, or no JSON object.
        TimeoutError: the deadline has passed.
        OSError: the other end is gone.
    """
    head = _receive_exactly(channel, _LENGTH.size, deadline)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise BadMessage(f"a frame of {length} bytes, more than {limit}")
    content = _receive_exactly(channel, length, deadline)
    if len(content) != length:
        raise BadMessage("a frame that was cut off")
    try:
        message = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadMessage("no JSON object")
    return message


def send_descriptors(channel: socket.socket, descriptors: Sequence[int]) -> None:
    """Send copies of open descriptors, in order, outside of any frame.

    Raises:
        OSError: the other end is gone.
    """
    for start in range(0, len(descriptors), _DESCRIPTORS):
        socket.send_fds(channel, [b"."], descriptors[start : start + _DESCRIPTORS])


def receive_descriptors(channel: socket.socket, count: int) -> list[int]:
    """Return the next `count` descriptors.

    Raises:
        BadMessage: another number came.
    """
    received: list[int] = []
    while len(received) < count:
        packet, descriptors, _, _ = socket.recv_fds(channel, 1, _DESCRIPTORS)
        received.extend(descriptors)
        if not packet or not descriptors:
            break
    if len(received) != count:
        for descriptor in received:
            socket.close(descriptor)
        raise BadMessage(f"{len(received)} descriptors instead of {count}")
    return received


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _receive_exactly(channel: socket.socket, length: int, deadline: float) -> bytes:
    content = bytearray()
    while len(content) < length:
        if deadline != math.inf:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the other end took too long")
            channel.settimeout(left)
        chunk = channel.recv(min(length - len(content), 1 << 16))
        if not chunk:
            break
        content += chunk
    return bytes(content)
