"""Values in memory that other processes read: what is mapped stays, and what is gone is an error."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from support import ROOT

from arpo_verl.engines.vllm.memory_files import LARGE_BYTES, Address, FileLostError, hold, read, write

READER = """
import sys
from arpo_verl.engines.vllm.memory_files import Address, read
value = read(Address(*map(int, sys.argv[1:])))
print(value["pixels"].dtype, float(value["pixels"].sum()), value["grid"].tolist(), flush=True)
sys.stdin.read()
print(float(value["pixels"].sum()))
"""


@pytest.fixture
def written():
    """Writes values; their files end with the test."""
    files = []

    def make(number, size=LARGE_BYTES):
        pixels = torch.full((size // 2,), float(number), dtype=torch.bfloat16).reshape(2, -1)
        address = write({"pixels": pixels, "grid": torch.tensor([[1, 2, number]]), "name": f"image {number}"})
        files.append(address.file)
        return address

    yield make
    for file in files:
        os.close(file)


def test_a_value_comes_back_with_its_tensors_large_and_small(written):
    value = read(written(3))
    assert value["pixels"].dtype == torch.bfloat16 and value["pixels"].shape == (2, LARGE_BYTES // 4)
    assert (value["pixels"] == 3).all() and value["grid"].tolist() == [[1, 2, 3]] and value["name"] == "image 3"


def test_a_slice_and_an_empty_tensor_come_back(written):
    wide = torch.arange(2 * LARGE_BYTES).reshape(2, -1).T
    address = write([wide, wide[:1, :0], torch.tensor(2.0)])
    try:
        found = read(address)
        assert torch.equal(found[0], wide) and found[1].shape == (1, 0) and found[2] == 2
    finally:
        os.close(address.file)


def test_another_process_reads_what_this_one_wrote_and_keeps_it_when_the_file_is_closed(written):
    address = written(2, 1 << 20)
    numbers = map(str, (address.process, address.file, address.token, address.size))
    command = [sys.executable, "-c", READER, *numbers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as reader:
        assert reader.stdout.readline().split() == ["torch.bfloat16", "1048576.0", "[[1,", "2,", "2]]"]
        os.dup2(written(7, 1 << 20).file, address.file)
        reader.stdin.close()
        assert float(reader.stdout.readline()) == 1048576.0


def test_nobody_changes_what_is_written(written):
    address = written(1)
    with pytest.raises(PermissionError):
        os.pwrite(address.file, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(address.file, 0)
    first = read(address)["pixels"]
    first.fill_(9)
    assert (read(address)["pixels"] == 1).all()


def test_a_file_that_is_held_is_there_when_its_writer_has_closed_it(written):
    address = written(1)
    held = hold(address)
    os.dup2(0, address.file)  # closes it, and no other thread gets its number, which the fixture closes
    assert (read(held)["pixels"] == 1).all()
    os.close(held.file)


@pytest.mark.parametrize("find", [hold, read])
def test_what_is_in_the_place_of_a_closed_file_is_not_taken_for_it(written, find):
    address, other = written(1), written(2)
    assert other.size == address.size
    os.dup2(other.file, address.file)  # as where the number is given out again
    with pytest.raises(FileLostError, match="another file"):
        find(address)
    ends = os.pipe()
    try:
        for file in (ends[0], 1 << 20):  # nothing is open by the second number
            with pytest.raises(FileLostError):
                find(Address(os.getpid(), file, address.token, address.size))
    finally:
        for end in ends:
            os.close(end)


def test_nothing_is_left_of_a_writer_that_was_killed():
    command = [sys.executable, "-c", "import os, signal; from arpo_verl.engines.vllm.memory_files import write\n"]
    command[-1] += "address = write(bytes(9)); print(os.readlink(f'/proc/self/fd/{address.file}').partition(':')[0])\n"
    command[-1] += "print(*vars(address).values(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout.readline() == "/memfd\n", "it has no name in any folder"
        address = Address(*map(int, writer.stdout.readline().split()))
    assert writer.returncode == -signal.SIGKILL
    with pytest.raises(FileLostError):
        read(address)
