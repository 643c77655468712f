"""What a fork of the warm parent allocates lies together, so that few pages are copied for it."""

import json
import subprocess
import sys

import pytest

from handrail_cell import _libc

SCRIPT = """
import ctypes, json, sys
from handrail_cell import _libc

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_size_t]
SIZES = (24, 300, 2_000, 20_000)
blocks = [libc.malloc(size) for _ in range(200) for size in SIZES]
for block in blocks[:-1:2]:
    libc.free(block)
if sys.argv[1] == "bounded":
    _libc.MOST_IN_HOLES = 10_000
taken = [_libc.use_up_holes(), _libc.use_up_holes()] if sys.argv[1] != "as they are" else []
later = [libc.malloc(size) for size in SIZES]
json.dump({"taken": taken, "end": max(blocks), "later": later}, sys.stdout)
"""


def allocate(how: str) -> dict:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_without_it_the_next_blocks_come_from_holes():
    found = allocate("as they are")
    assert min(found["later"]) < found["end"]


def test_with_holes_used_up_every_next_block_lies_beyond_all_that_there_is():
    found = allocate("used up")
    assert min(found["later"]) > found["end"]


def test_what_is_taken_is_what_the_holes_had_and_a_second_time_finds_none():
    first, second = allocate("used up")["taken"]
    assert 200 * (24 + 2_000) <= first < 4_000_000
    assert second < 10_000


def test_no_more_is_taken_than_the_bound_and_one_block():
    first, _ = allocate("bounded")["taken"]
    assert 10_000 <= first < 10_000 + max(_libc.HOLES)


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_libc, "_libc", object())
    assert _libc.use_up_holes() == 0
