"""Keeps a tool's text within bounds: head and tail for the model, the whole in a private file.

The directory is 0700 and outside the workspace; names are random; files are 0600, made with ``O_EXCL`` and
``O_NOFOLLOW`` beneath the directory's descriptor, so nothing planted there is followed.
"""

import hashlib
import logging
import os
import secrets
import stat
from dataclasses import dataclass

from handrail import private
from handrail.errors import ConfigurationError
from handrail.outcome import FullOutput, ToolOutcome

log = logging.getLogger("handrail")


@dataclass(frozen=True, slots=True)
class OutputCap:
    """How much text the model reads, in UTF-8 bytes, and where the whole of a longer one is kept."""

    max_bytes: int
    directory: str

    def apply(self, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome itself when its text fits, else one with head, marker and tail and ``full_output`` set.

        A text that cannot be kept whole (disk full, directory not private) is cut all the same and says so: what the
        tool did happened, and its outcome must not be lost over it. Lone surrogates become ``?``.
        """
        if outcome.text.isascii() and len(outcome.text) <= self.max_bytes:
            return outcome
        raw = outcome.text.encode("utf-8", "replace")
        if len(raw) <= self.max_bytes:
            text = raw.decode()
            return outcome if text == outcome.text else outcome.with_(text=text)
        try:
            kept = spill(self.directory, raw)
        except (OSError, ConfigurationError) as error:
            log.exception("the whole output of call %s could not be kept", outcome.call_id)
            return outcome.with_(text=cut(raw, self.max_bytes, f"could not be kept: {error}"), truncated=True)
        return outcome.with_(text=cut(raw, self.max_bytes, f"is in {kept.path}"), truncated=True, full_output=kept)


def cut(raw: bytes, max_bytes: int, whole: str) -> str:
    """Head and tail of ``raw`` (UTF-8), about ``max_bytes`` together, with the number of missing bytes between.

    ``whole`` says what became of the whole.
    """
    half = max_bytes // 2
    head = raw[:half].decode("utf-8", "ignore")
    tail = raw[len(raw) - half :].decode("utf-8", "ignore")
    missing = len(raw) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {missing} bytes left out; the whole output ({len(raw)} bytes) {whole} …]\n{tail}"


def spill(directory: str, raw: bytes) -> FullOutput:
    """Keep ``raw`` in a new private file in ``directory`` (made 0700 when missing)."""
    parent = open_private_directory(directory)
    try:
        name = secrets.token_hex(16) + ".txt"
        fd = private.open_file(name, os.O_WRONLY | os.O_EXCL, directory=parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(raw)
        except OSError:
            os.unlink(name, dir_fd=parent)  # half an output must not pass for the whole
            raise
    finally:
        os.close(parent)
    return FullOutput(os.path.join(directory, name), len(raw), hashlib.sha256(raw).hexdigest())


def open_private_directory(directory: str) -> int:
    """Make ``directory`` if it is missing (0700) and open it.

    Raises :class:`~handrail.errors.ConfigurationError` when it is a link, not ours, or open to others.
    """
    private.make_directories(os.path.dirname(directory) or ".")
    private.make_directory(directory)  # checked below, whoever made it
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{directory!r} cannot be used as a private directory: {error.strerror}") from None
    state = os.fstat(fd)
    if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
        os.close(fd)
        raise ConfigurationError(f"{directory!r} must belong to you and be closed to others (chmod 700)")
    return fd
