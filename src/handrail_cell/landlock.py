"""Landlock: the second wall around files, and the first in the reduced tier.

What it never governs, whatever the rules say: ``stat``, ``chmod``, ``chown``, timestamps, extended attributes,
``chdir``, ``O_PATH`` and descriptors that are already open. Where no mount namespace stands in front, a filter takes
those away.

Access bits by ABI version; source: ``Documentation/userspace-api/landlock.rst``.
"""

import os
import struct

from handrail_cell import _libc

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13  # ABI 2
TRUNCATE = 1 << 14  # ABI 3
IOCTL_DEV = 1 << 15  # ABI 5
RESOLVE_UNIX = 1 << 16  # ABI 9

BIND_TCP, CONNECT_TCP = 1, 2  # ABI 4
BIND_UDP, CONNECT_UDP = 4, 8  # ABI 10
SCOPE_ABSTRACT, SCOPE_SIGNAL = 1, 2  # ABI 6

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (
    READ
    | WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE
)
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE

READ_ONLY_FROM = 3
"""The first ABI that can promise "read-only": before it, ``truncate`` needed no right."""
SCOPES_FROM = 6


def abi() -> int:
    """The kernel's Landlock version; 0 when it has none or it is switched off."""
    try:
        return _libc.call("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def handled_files(version: int) -> int:
    """Every file right that this version knows: all are denied unless a rule gives them back."""
    rights = (1 << 13) - 1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV), (9, RESOLVE_UNIX)):
        if version >= since:
            rights |= right
    return rights


def handled_ports(version: int, *, network: bool) -> int:
    """Every network right that this version knows, or none when the host granted the network."""
    if network or version < 4:
        return 0
    return BIND_TCP | CONNECT_TCP | (BIND_UDP | CONNECT_UDP if version >= 10 else 0)


def refusal(version: int, *, network: bool) -> bytes:
    """What a ruleset that denies everything is made of: ``struct landlock_ruleset_attr``."""
    scopes = SCOPE_ABSTRACT | SCOPE_SIGNAL if version >= SCOPES_FROM else 0
    words = (handled_files(version), handled_ports(version, network=network), scopes)
    size = 8 if version < 4 else 16 if version < SCOPES_FROM else 24
    return struct.pack("=QQQ", *words)[:size]


def grant(version: int, directory: int, rights: int) -> bytes:
    """``rights`` beneath an open directory (or to one file)."""
    return GRANT.pack(rights & handled_files(version), directory)


GRANT = struct.Struct("=Qi")
"""``struct landlock_path_beneath_attr``: rights, none that the version does not know, and a descriptor."""


def create(refused: bytes) -> int:
    """A new ruleset of what :func:`refusal` gave. Returns its descriptor."""
    return _libc.call("landlock_create_ruleset", refused, len(refused), 0)


def add(ruleset: int, granted: bytes) -> None:
    """Give back what :func:`grant` says."""
    _libc.call("landlock_add_rule", ruleset, 1, granted, 0)


def allow(ruleset: int, version: int, path: bytes, rights: int) -> None:
    """Give ``rights`` back beneath ``path`` (a directory, or one file)."""
    directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        add(ruleset, grant(version, directory, rights))
    finally:
        os.close(directory)


def restrict(ruleset: int) -> None:
    """Enforce the ruleset on this process and all it will start, and close it. Needs ``no_new_privs``. There is no way
    back.
    """
    try:
        _libc.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
