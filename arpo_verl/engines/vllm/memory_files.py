"""Write values into files in memory (`memfd_create`), once, for other processes to read in place.

A file is sealed before anybody learns of it. The kernel then refuses every change, so a reader's mapping keeps its
content, whatever the writer does. The file has no name in any folder and takes no room in /dev/shm. The kernel removes
it with the last process that has it open or mapped, even if that is killed.

Another process finds it as `/proc/PROCESS/fd/NUMBER`. The writer may have closed it since and opened another file under
that number. So each file begins with a random number of its own, which the reader compares.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import secrets
import stat
import struct
from dataclasses import dataclass, replace
from typing import Any

import torch

from arpo_verl.errors import ArpoError

LARGE_BYTES = 4096
"""A tensor of at least so many bytes is stored raw and read in place; smaller ones are pickled with the value."""
_ALIGNED = 64
_HEAD = struct.Struct("<QQ")
"""The file's own number, and the length of the pickled value after it."""
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class FileLostError(ArpoError, LookupError):
    """The file was closed, and its place may now hold another."""


@dataclass(frozen=True)
class Address:
    """The place of a file."""

    process: int
    file: int
    """Its descriptor in that process."""
    token: int
    """The file's own number."""
    size: int
    """Size in bytes."""

    @property
    def path(self) -> str:
        return f"/proc/{self.process}/fd/{self.file}"


def write(value: Any) -> Address:
    """Write `value` into a new file of this process; `os.close(address.file)` removes it."""
    token, pickled = secrets.randbits(62), io.BytesIO()
    tensors: list[tuple[torch.Tensor, int]] = []
    _Pickler(pickled, tensors).dump(value)
    head = pickled.getvalue()
    begin = _aligned(_HEAD.size + len(head))
    file = os.memfd_create("arpo_verl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write_all(file, _HEAD.pack(token, len(head)) + head, 0)
        for tensor, at in tensors:
            _write_all(file, tensor.reshape(-1).view(torch.uint8).numpy(), begin + at)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        return Address(os.getpid(), file, token, os.fstat(file).st_size)
    except BaseException:
        os.close(file)
        raise


def hold(address: Address) -> Address:
    """Open the file in this process too, so that it exists while this process keeps it open.

    Raises:
        FileLostError: the file was closed.
    """
    try:
        file = os.open(address.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FileLostError(f"{address.path} does not open: {error}") from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != address.size:
            raise FileLostError(f"{address.path} has become another file")
        _check(address, os.pread(file, _HEAD.size, 0))
    except BaseException:
        os.close(file)
        raise
    return replace(address, process=os.getpid(), file=file)


def read(address: Address) -> Any:
    """Return the value. Its large tensors are the file's own memory; changing them does not change the file.

    Raises:
        FileLostError: the file was closed.
    """
    try:
        raw = torch.from_file(address.path, shared=False, size=address.size, dtype=torch.uint8)
    except RuntimeError as error:
        raise FileLostError(f"{address.path} does not open: {error}") from error
    memory = memoryview(raw.numpy())  # type: ignore[arg-type]  # NumPy declares it from Python 3.12 on
    length = _check(address, bytes(memory[: _HEAD.size]))
    begin = _aligned(_HEAD.size + length)
    return _Unpickler(io.BytesIO(memory[_HEAD.size : _HEAD.size + length]), raw[begin:]).load()


def _check(address: Address, head: bytes) -> int:
    """Check the file's number; return the length of the pickled value."""
    token, length = _HEAD.unpack(head)
    if token != address.token:
        raise FileLostError(f"{address.path} has become another file")
    return int(length)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _write_all(file: int, data: Any, at: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


class _Pickler(pickle.Pickler):
    """Puts large tensors after the pickled value, and pickles only their places."""

    def __init__(self, file: Any, tensors: list[tuple[torch.Tensor, int]]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors, self._end = tensors, 0

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.nbytes < LARGE_BYTES:
            return None
        at, self._end = self._end, _aligned(self._end + value.nbytes)
        self._tensors.append((value.detach().contiguous(), at))
        return at, value.dtype, tuple(value.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, behind: torch.Tensor) -> None:
        super().__init__(file)
        self._behind = behind

    def persistent_load(self, place: Any) -> torch.Tensor:
        at, dtype, shape = place
        size = dtype.itemsize
        for length in shape:
            size *= length
        return self._behind[at : at + size].view(dtype).reshape(shape)
