"""What crosses between host, zygote and cell, byte for byte. No dataclasses here: the zygote stays lean.

Host and zygote speak over a sequenced-packet socket, one message at a time; host and cell over a stream.

- *park* (host to zygote): :data:`PARK`, always 64 bytes, with three descriptors: the cell's end of its job stream, the
  cell's end of its output pipe, the result memory; and a fourth, where the zygote will write the end of the cell.
- *ended* (zygote to host, on the fourth descriptor): :data:`ENDED`, what ``wait4`` said; or :data:`UNBORN` with the
  reason why there is no cell.
- *farewell* (kernel to host): the exit status, as an argument of the cell's own ``exit_group``; see ``FAREWELL``.
- *ready*, *confined*, *failed* (cell to host, on the job stream): a :data:`FRAME` head and text. All of them are
  written by trusted code before a byte of the tool's runs; after *confined* the stream is closed.
- *job* (host to cell): :data:`JOB` head, then ``meta`` (:data:`LIMITS`, then JSON, nothing for :data:`PLAIN`; the same
  for every call with one profile), ``name`` (a file name, or JSON of argv and cwd), ``source``, ``compiled`` (what an
  earlier cell made of that source, or nothing) and ``input``; descriptors ride with the head.
- *result*: left by the cell in the result memory: :data:`RESULT` head and a body. Untrusted: any code in the cell can
  write there.
"""

import struct
from typing import Any

PARK = struct.Struct("=4s60x")
PARK_BYTES = PARK.size
PARK_MAGIC = b"park"
PARK_DESCRIPTORS = 4
ENDED = struct.Struct("=4sid")  # magic, wait status, seconds of processor time
ENDED_MAGIC = b"endd"
UNBORN = struct.Struct("=4si")  # magic, errno
UNBORN_MAGIC = b"none"

FAREWELL = 0x0FA0E700
"""Bits of ``exit_group``'s argument that the kernel ignores. With them the call is shown to the host before it acts."""

GIFTS = ("pidfd", "scratch", "view", "mounts", "farewell")
"""Descriptors that ride with the ready frame: all of these, or the first few."""

FRAME = struct.Struct("=cI")
READY, CONFINED, FAILED = b"R", b"C", b"X"

JOB = struct.Struct("=4sIIIII")  # magic, bytes of meta, name, source, compiled, input
JOB_BYTES = JOB.size
JOB_MAGIC = b"job1"
LIMITS = struct.Struct("=6q")  # seconds of processor time; bytes of memory; processes; bytes of disk, of a file; files
LIMITS_BYTES = LIMITS.size
Numbers = tuple[int, int, int, int, int, int]
"""The limits as numbers, in that order."""
PLAIN: dict[str, Any] = {
    "kind": "inline",
    "workspace": None,
    "access": "none",
    "exec": False,
    "environment": {},
    "cwd": "/tmp",
    "copy_bytes": 0,
}
"""What is said of most calls besides their limits, and then need not be said: not even a decoder is touched."""
JOB_DESCRIPTORS = 4  # workspace, then stdin, stdout, stderr of a long-lived program

RESULT = struct.Struct("=II")  # kind, bytes of body
RESULT_BYTES = 4 * 1024 * 1024
NOTHING, VALUE, ERROR, STATUS, CODE = 0, 1, 2, 3, 4

KEEPER_ASK = struct.Struct("=4sI")  # magic, copies wanted; then the path
KEEPER_MAGIC = b"tree"

TRACEBACK_BYTES = 64 * 1024
