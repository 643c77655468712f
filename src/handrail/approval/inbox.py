"""Questions that wait: parked in the journal, answered from any process that may open it.

The journal lies in a directory that only the user may enter; who can write an answer there is the user. A door that is
reached otherwise (a web page, a chat) is given a token for one question and hands it back with the answer.
"""

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields
from typing import Any, cast

from handrail import faults, private
from handrail.approval.decision import ApprovalRequest, Decision, Park
from handrail.changes.changeset import ChangeSet
from handrail.errors import ApprovalError
from handrail.parked import Answer, ApprovalStore, GrantPattern, ParkedCall
from handrail.schema import ArgumentsInvalid, canonical_bytes, copy_json
from handrail.tool import RiskLevel

SECRET_BYTES = 32


class InboxApprover:
    """Answers nothing now: every question is kept, and the call's outcome is ``pending``."""

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Keep the question."""
        return Park()


class Inbox:
    """Reads and answers the questions of one store. ``by`` names who answers in the journal."""

    def __init__(self, store: ApprovalStore, *, by: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._by = by
        self._clock = clock

    async def waiting(self) -> list[tuple[ParkedCall, Answer | None]]:
        """Every question that is still open, or answered and not used yet; oldest first."""
        return await self._store.list_parked()

    async def question(self, approval_id: str) -> tuple[ApprovalRequest, Answer | None]:
        """One question as it was asked, made of what will run. Raises :class:`ApprovalError`."""
        parked, answer, _ = await self._store.parked(approval_id)
        return request_of(parked), answer

    async def approve(self, approval_id: str) -> None:
        """Yes, once. Raises :class:`ApprovalError` for an id that is unknown, late, answered or used."""
        await self._record(approval_id, Answer(verdict="approve", by=self._by, at=self._clock()))

    async def reject(self, approval_id: str, why: str = "The approver said no.") -> None:
        """No, and what the model reads. Raises as :meth:`approve` does."""
        await self._record(approval_id, Answer(verdict="reject", by=self._by, at=self._clock(), why=why))

    async def edit(self, approval_id: str, arguments: Mapping[str, Any]) -> None:
        """Run it with these arguments instead: checked again, and asked about again. Raises as :meth:`approve` does."""
        try:
            copied = copy_json(arguments)
        except ArgumentsInvalid as error:
            raise ApprovalError(f"the new arguments cannot be used: {error}") from None
        await self._record(approval_id, Answer(verdict="modify", by=self._by, at=self._clock(), arguments=copied))

    async def _record(self, approval_id: str, answer: Answer) -> None:
        parked, _, _ = await self._store.parked(approval_id)
        request_of(parked)  # a question that does not agree with what would run is not answered
        await self._store.answer(approval_id, answer)


def request_of(parked: ParkedCall) -> ApprovalRequest:
    """The question of a parked call. Its arguments are those that will run.

    Raises :class:`ApprovalError` when the record does not agree with itself, so that nobody answers another question
    than the one they read.
    """
    try:
        request = _request(parked) if _agrees(parked) else None
    except (KeyError, TypeError, ValueError, AttributeError):  # what is stored is no question at all
        request = None
    if request is None:
        raise ApprovalError(
            f"the record of approval {parked.approval_id} does not agree with itself; it was tampered with"
        )
    return request


def _agrees(parked: ParkedCall) -> bool:
    question = parked.question
    changes = question.get("changes")
    return (
        (None if changes is None else ChangeSet.from_json(changes).digest) == parked.change_digest
        and question.get("approval_id") == parked.approval_id
        and question.get("call_id") == parked.call_id
        and question.get("tool") == parked.tool
        and question.get("binding") == parked.binding
        and canonical_bytes(question.get("arguments")) == canonical_bytes(dict(parked.arguments))
    )


def _request(parked: ParkedCall) -> ApprovalRequest:
    question = parked.question
    changes = question.get("changes")
    known = {item.name for item in fields(ApprovalRequest)}
    values: dict[str, Any] = {name: value for name, value in question.items() if name in known}
    values["arguments"] = deepcopy(dict(parked.arguments))
    values["risk"] = RiskLevel(values["risk"])
    values["changes"] = None if changes is None else ChangeSet.from_json(changes)
    offer = cast("Mapping[str, Any] | None", question.get("offer"))
    values["offer"] = None if offer is None else GrantPattern.from_json(offer)
    return ApprovalRequest(**values)


class Tokens:
    """Tokens by which an answer that comes from outside proves which question it answers.

    ``directory`` is the private state directory; the secret lies there in a file of mode 0600 that is made once. A
    token is a MAC over the question's id, its binding and its expiry: it cannot be made without the secret, and fits
    no other question. It says nothing about who holds it: hand it only to whom may answer.
    """

    def __init__(self, directory: str, *, clock: Callable[[], float] = time.time) -> None:
        self._secret = _secret(directory)
        self._clock = clock

    def of(self, parked: ParkedCall) -> str:
        """The token of one question: 43 characters, fit for a URL."""
        return base64.urlsafe_b64encode(self._mac(parked)).decode().rstrip("=")

    def check(self, token: str, parked: ParkedCall) -> None:
        """Raises :class:`ApprovalError` unless ``token`` is this question's and its time is not over."""
        try:
            given = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            given = b""
        if not hmac.compare_digest(given, self._mac(parked)):
            raise ApprovalError("this token does not belong to this approval")
        if parked.expires_at <= self._clock():
            raise ApprovalError(f"approval {parked.approval_id} has expired")

    def _mac(self, parked: ParkedCall) -> bytes:
        bound = [parked.approval_id, parked.call_id, parked.binding, parked.change_digest, parked.expires_at]
        return hmac.digest(self._secret, b"handrail approval v1\0" + canonical_bytes(bound), hashlib.sha256)


def _secret(directory: str) -> bytes:
    """The secret of this state directory, made if it is not there. Never follows a link, never shared."""
    private.make_directories(directory)
    path = os.path.join(directory, "approval-secret")
    if not os.path.lexists(path):
        _make_secret(path)
    return _read_secret(path)


def _make_secret(path: str) -> None:
    """Whole or not at all: of two who make it at once one wins, and one that is killed leaves no empty secret."""
    partial = f"{path}.{os.urandom(6).hex()}.partial"
    fd = private.open_file(partial, os.O_WRONLY | os.O_EXCL)
    try:
        os.write(fd, os.urandom(SECRET_BYTES))
        os.fsync(fd)
        faults.point("secret:written")
        os.link(partial, path)
    except FileExistsError:
        return
    finally:
        os.close(fd)
        os.unlink(partial)


def _read_secret(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ApprovalError(f"the secret for tokens cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        secret = os.read(fd, SECRET_BYTES + 1)
    finally:
        os.close(fd)
    if status.st_mode & 0o077 or status.st_uid != os.geteuid() or len(secret) != SECRET_BYTES:
        raise ApprovalError(f"{path} is not a private file of {SECRET_BYTES} bytes; remove it, and a new one is made")
    return secret
