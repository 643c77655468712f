"""ToolExecutor: the corridor. Every door of Handrail enters here, and a call walks it in one direction.

::

    raw call ─▶ Proposed ─▶ Checked ─▶ Approved ─▶ Recorded ─▶ body ─▶ review of changes ─▶ commit ─▶ ToolOutcome
                   ▲                      │ edited arguments      │
                   └──────────────────────┴───────────────────────┘   the only way back, and to the very start

Each step returns the next stage, or a :class:`ToolOutcome` that ends the walk. :meth:`ToolExecutor._walk` holds the
order; everything else here carries out one step of it.
"""

import inspect
import logging
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio
import platformdirs
from msgspec.structs import replace

from handrail import faults
from handrail.approval.decision import (
    ApprovalRequest,
    Approve,
    Approver,
    Decision,
    Modify,
    Park,
    Reject,
    Unavailable,
)
from handrail.approval.grants import MemoryGrants, covers, make_grant, offer
from handrail.approval.policy import Policy, RiskTable, Verdict
from handrail.bounds import require_seconds, require_whole
from handrail.call import Approved, Checked, Origin, Proposed, Recorded, Reviewed, new_call_id
from handrail.changes.changeset import ChangeSet
from handrail.changes.keeper import ChangeKeeper
from handrail.errors import (
    ApprovalError,
    CallBegunBefore,
    ChangeConflict,
    ChangeError,
    ConfigurationError,
    JournalError,
    PathEscape,
    PathUnusable,
    SandboxUnavailable,
    StaleEpoch,
    ToolError,
)
from handrail.guard import FilesystemGuard, Guarded
from handrail.journal.protocol import CallJournal, NoJournal
from handrail.loops import Slots, SyncLoop, comes_from_outside, inside
from handrail.outcome import ChangesReport, Reason, ToolOutcome
from handrail.output import OutputCap
from handrail.parked import Answer, Grant, GrantStore, HeldIntent, ParkedCall
from handrail.registry import ToolRegistry
from handrail.schema import ArgumentsInvalid, JsonObject, Schema, decode_arguments, is_unicode
from handrail.tool import Effect, Job, Signal, ToolDef
from handrail.walk import Listeners as Listeners
from handrail.walk import (
    Walk,
    begun_before,
    broken,
    cancelled,
    denied,
    dropped_for_edit,
    edited_to,
    for_changes,
    no_such_tool,
    nobody_to_ask,
    said_no,
    short,
    without_journal,
)
from handrail.workspace import AnyPath, Workspace

log = logging.getLogger("handrail")

RawArguments = str | bytes | Mapping[str, Any]
OutputReviewer = Callable[[Checked, ToolOutcome], ToolOutcome | Awaitable[ToolOutcome]]
MAX_EDITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call as a model proposed it: a name and arguments that nobody has looked at yet."""

    name: str
    arguments: RawArguments
    call_id: str = ""
    origin: Origin = field(default_factory=Origin)


_NOBODY = Origin()
_NO_LISTENERS = Listeners()


class _EditedTooOften(Exception):
    """The approver and the call go in circles."""


class ToolExecutor:
    """Runs tool calls without trusting them.

    ``workspace``: the directory tools may reach (a path, or an open :class:`Workspace`); ``None`` for tools without
    paths. ``approver``: who is asked about calls that policy asks about; ``None`` means nobody, so they are refused.
    ``policy``: the rules; the default is :class:`RiskTable`. ``journal``: where intents and outcomes are kept.
    ``changes``: the private store of staged changes. ``timeout``: seconds, for tools that declare none.
    ``max_output_bytes``: how much text of one outcome the model reads; ``spill_directory`` keeps the whole.
    ``max_parallel``: how many calls run at once in one event loop. ``approval_ttl``: seconds an approval stays open.
    ``session`` and ``grants``: whose lasting approvals count here, and where they are kept (default: a session of this
    executor's own, kept in memory). ``review_output``: a function that may change or withhold what a tool said, before
    the model reads it; what the tool did stays done.

    Raises :class:`~handrail.errors.ConfigurationError` for a number that cannot work, and
    :class:`~handrail.errors.WorkspaceError` when the workspace cannot be opened.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        workspace: AnyPath | Workspace | None = None,
        approver: Approver | None = None,
        policy: Policy | None = None,
        journal: CallJournal | None = None,
        changes: ChangeKeeper | None = None,
        timeout: float = 60.0,
        max_output_bytes: int = 50_000,
        spill_directory: str | None = None,
        max_parallel: int = 8,
        approval_ttl: float = 3600.0,
        mask_values: bool = False,
        session: str = "",
        grants: GrantStore | None = None,
        review_output: OutputReviewer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        _require_workable(timeout, approval_ttl, max_output_bytes, max_parallel)
        self.registry = registry
        self.workspace = (
            Workspace(workspace) if workspace is not None and not isinstance(workspace, Workspace) else workspace
        )
        self._guard = FilesystemGuard(self.workspace) if self.workspace is not None else None
        self._workspace_id = self.workspace.path if self.workspace is not None else ""
        self.approver = approver
        self._policy: Policy = policy if policy is not None else RiskTable()
        self._journal: CallJournal = journal if journal is not None else NoJournal()
        self._changes = changes
        self._contents = changes.contents if changes is not None else None
        self._timeout = timeout
        self._cap = OutputCap(max_output_bytes, _spill_directory(spill_directory, self.workspace))
        self._approval_ttl = approval_ttl
        self._mask_values = mask_values
        self.session = session or new_call_id()
        self._review_output = review_output
        self._grants: GrantStore = grants if grants is not None else MemoryGrants()
        self._clock = clock
        self._slots = Slots(max_parallel)
        self._sync = SyncLoop()

    # ── doors ────────────────────────────────────────────────────────────────────────────────────────────────

    async def execute(
        self,
        name: str,
        arguments: RawArguments,
        *,
        call_id: str = "",
        id_is_new: bool = False,
        origin: Origin = _NOBODY,
        signal: Signal | None = None,
        listeners: Listeners = _NO_LISTENERS,
    ) -> ToolOutcome:
        """Carry one call through the corridor and return its outcome.

        Never raises for anything that the call, the tool or the approver did; those are outcomes. A ``call_id`` that
        was settled before returns its recorded outcome; ``id_is_new`` says that the caller has just made it, so that
        the journal need not be asked. Cancellation is passed on, after it was recorded.

        Raises :class:`ConfigurationError` for a ``call_id`` that no journal can keep.
        """
        if call_id:
            _require_text(call_id)
        walk = Walk(call_id or new_call_id(), name, time.perf_counter(), signal or Signal(), listeners)
        walk.may_be_known = bool(call_id) and not id_is_new
        return await self._ended(walk, self._walk(walk, arguments, origin))

    async def replay(self, name: str, arguments: JsonObject, *, call_id: str, origin: Origin) -> ToolOutcome:
        """:meth:`execute` once more for a call whose record says that it was cut off, with the record's arguments.

        Those were decoded when the call was new; the guard may have put names in them that are not UTF-8.
        """
        walk = Walk(call_id, name, time.perf_counter(), Signal(), _NO_LISTENERS)
        walk.may_be_known = True
        return await self._ended(walk, self._walk(walk, arguments, origin, decoded=True))

    def execute_sync(self, name: str, arguments: RawArguments, **options: Any) -> ToolOutcome:
        """:meth:`execute` for callers without an event loop; it runs in one loop thread that this executor keeps.

        Raises :class:`RuntimeError` inside a running event loop, which it would block: await :meth:`execute` there.
        """
        return self._sync.run(self.execute(name, arguments, **options))

    async def execute_many(self, calls: Sequence[ToolCall], *, signal: Signal | None = None) -> list[ToolOutcome]:
        """Run calls in parallel (at most ``max_parallel`` at once); outcomes in call order, one for each call."""
        outcomes: list[ToolOutcome | None] = [None] * len(calls)

        async def one(index: int, call: ToolCall) -> None:
            outcomes[index] = await self.execute(
                call.name, call.arguments, call_id=call.call_id, origin=call.origin, signal=signal
            )

        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                group.start_soon(one, index, call)
        return [outcome for outcome in outcomes if outcome is not None]

    async def resume(self, approval_id: str, *, signal: Signal | None = None) -> ToolOutcome:
        """Go on with a parked call after its answer, here or in another process.

        Unanswered: still ``pending``. Approved: the call starts again at the beginning, and runs only if everything the
        answer was bound to is the same; a call that ran staged is committed. Rejected: it never runs.
        """
        walk = Walk(new_call_id(), "", time.perf_counter(), signal or Signal(), _NO_LISTENERS)
        return await self._ended(walk, self._resumed(walk, approval_id))

    def close(self) -> None:
        """End the loop thread of :meth:`execute_sync` and close the workspace. Closing twice is harmless."""
        self._sync.close()
        if self.workspace is not None:
            self.workspace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ── the corridor ─────────────────────────────────────────────────────────────────────────────────────────

    async def _walk(self, walk: Walk, arguments: RawArguments, origin: Origin, *, decoded: bool = False) -> ToolOutcome:
        """The order of everything. Read it top to bottom."""
        known = await self._journal.recorded_outcome(walk.call_id) if walk.may_be_known else None
        if known is not None:
            walk.settled = True
            return known
        while True:
            proposed = self._propose(walk, arguments, origin, decoded=decoded and walk.edited_arguments is None)
            if isinstance(proposed, ToolOutcome):
                return proposed
            checked = self._check(walk, proposed)
            if isinstance(checked, ToolOutcome):
                return checked
            verdict = self._policy.decide(checked)
            approved = _allowed(checked, verdict) or await self._approve(checked, verdict)
            if isinstance(approved, Modify):
                arguments = self._edited(walk, approved)
                continue
            if isinstance(approved, ToolOutcome):
                return approved
            if walk.signal.is_set():
                return cancelled(walk)
            recorded, effect = await self._carry_out(walk, approved)
            if not effect.changes or effect.outcome.status != "ok":
                return effect.outcome
            reviewed = await self._review(recorded, effect.outcome, effect.changes)
            if isinstance(reviewed, Modify):
                dropped = await self._settle(walk, dropped_for_edit(reviewed))
                if not walk.settled:
                    return dropped
                arguments = self._edited(walk, reviewed)
                self._start_again(walk)
                continue
            if isinstance(reviewed, ToolOutcome):
                return reviewed.with_(changes=self._report(effect.changes, committed=False))
            return await self._commit(walk, reviewed, effect.outcome, effect.changes)

    async def _ended(self, walk: Walk, steps: Coroutine[Any, Any, ToolOutcome]) -> ToolOutcome:
        """Await a walk, turn what it raised into an outcome, and record the outcome before anybody reads it."""
        try:
            outcome = await steps
        except anyio.get_cancelled_exc_class():
            walk.signal.set("cancelled")
            with anyio.CancelScope(shield=True):
                await self._settle(walk, cancelled(walk))
            raise
        except CallBegunBefore:  # whoever began it records its end; there is nothing of ours to record
            return self._completed(walk, begun_before())
        except JournalError as error:
            outcome = without_journal(walk, error)
        except ApprovalError as error:  # used before, here or by another process; whoever used it records the call
            return self._completed(walk, ToolOutcome.error(f"Refused: {error}.", Reason.APPROVAL_EXPIRED))
        except _EditedTooOften:
            outcome = ToolOutcome.error(
                f"The approver edited this call more than {MAX_EDITS} times; it was given up.", Reason.REJECTED
            )
        except Exception as error:
            log.exception("a bug in handrail ended call %s to %s", walk.call_id, walk.name)
            outcome = broken(walk, error)
        return await self._settle(walk, outcome)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def _propose(
        self, walk: Walk, raw: RawArguments, origin: Origin, *, decoded: bool = False
    ) -> Proposed | ToolOutcome:
        """``decoded``: the arguments are a record's; the guard may have put names in them that are not UTF-8."""
        registered = self.registry.find(walk.name)
        if registered is None:
            return ToolOutcome.error(no_such_tool(walk.name, self.registry.names), Reason.UNKNOWN_TOOL)
        try:
            arguments = deepcopy(dict(raw)) if decoded and isinstance(raw, Mapping) else decode_arguments(raw)
        except ArgumentsInvalid as error:
            return ToolOutcome.error(f"Invalid arguments for {walk.name}: {error}.", Reason.INVALID_ARGUMENTS)
        return Proposed(walk.call_id, registered, arguments, origin, walk.edited_by)

    def _check(self, walk: Walk, proposed: Proposed) -> Checked | ToolOutcome:
        definition = proposed.registered.tool.definition
        wrong = definition.schema.errors(proposed.arguments, mask=self._mask_values)
        if wrong:
            return ToolOutcome.error(
                f"Invalid arguments for {walk.name}: " + "; ".join(wrong) + ".", Reason.INVALID_ARGUMENTS
            )
        guarded = None
        if definition.guarded_args or definition.guards_unnamed:
            guarded = self._guarded(definition, proposed.arguments)
            if isinstance(guarded, ToolOutcome):
                return guarded
        if self._changes is None and definition.has_effects and proposed.registered.tool.body.staged:
            return ToolOutcome.error(
                "This executor keeps no store for changes, so nothing was run.", Reason.CANNOT_STAGE
            )
        if guarded is None:
            checked = Checked(proposed, proposed.arguments, self._workspace_id)
        else:
            checked = Checked(proposed, guarded.arguments, self._workspace_id, guarded.requested, guarded.resolved)
        walk.checked = checked
        return checked

    def _guarded(self, definition: ToolDef, arguments: dict[str, Any]) -> Guarded | ToolOutcome:
        named = definition.paths_in(arguments)
        if not named:
            return Guarded(arguments, {}, {})
        if self._guard is None:
            return ToolOutcome.error(
                f"{named[0]}: this executor has no workspace, so no path can be used.", Reason.PATH_REFUSED
            )
        try:
            return self._guard.check(definition, arguments)
        except (PathEscape, PathUnusable) as error:
            return ToolOutcome.error(f"Path refused: {error}.", Reason.PATH_REFUSED)

    async def _approve(self, checked: Checked, verdict: Verdict) -> Approved | Modify | ToolOutcome:
        """What policy did not simply allow: refused by it, granted before, or decided by whoever is asked."""
        if verdict.decision == "deny":
            return denied(verdict)
        grant = await self._granted(checked, verdict)
        if grant is not None:
            return Approved(checked, "before", f"grant {grant.grant_id}", approved_by=grant.by)
        if self.approver is None:
            return said_no(nobody_to_ask(checked))
        if verdict.review == "changes":
            return Approved(checked, "changes", verdict.rule)
        request = self._question(checked, verdict, None)
        decision = await self._decide(request)
        if isinstance(decision, Approve):
            await self._keep_grant(decision, request, checked)
            return Approved(
                checked,
                "before",
                verdict.rule,
                request.approval_id,
                decision.by,
                request.binding,
                request.asked_at,
                self._clock(),
            )
        if isinstance(decision, Modify):
            return decision
        if isinstance(decision, Park):
            return await self._park(request, checked, None, None)
        return said_no(decision)

    async def _carry_out(self, walk: Walk, approved: Approved) -> tuple[Recorded, Effect]:
        """Record the intent and run the body, when there is room. Waiting for an approver takes no room."""
        around = inside.get()
        room = None if id(self) in around else self._slots.room()
        if room is not None:
            try:
                room.acquire_nowait()
            except anyio.WouldBlock:
                await room.acquire()
        token = inside.set((*around, id(self)))
        try:
            if approved.binding is not None:
                _refuse_if_another(approved, self._policy.version)
            declared = approved.checked.proposed.registered.tool.definition.timeout
            seconds = self._timeout if declared is None else declared
            walk.recorded = recorded = await self._journal.begin(approved, deadline=self._clock() + seconds)
            if walk.listeners.on_stage is not None:
                walk.listeners.on_stage("running", recorded)
            return recorded, await self._run(walk, recorded, seconds)
        finally:
            inside.reset(token)
            if room is not None:
                room.release()

    async def _run(self, walk: Walk, recorded: Recorded, seconds: float) -> Effect:
        checked = recorded.approved.checked
        proposed = checked.proposed
        tool = proposed.registered.tool
        job = Job(
            call_id=proposed.call_id,
            definition=tool.definition,
            arguments=checked.arguments,
            workspace=self.workspace,
            idempotency_key=recorded.idempotency_key,
            timeout=seconds,
            signal=walk.signal,
            contents=self._contents,
            on_output=walk.listeners.on_output,
            on_progress=walk.listeners.on_progress,
        )
        try:
            faults.point("call.body.enter")
            effect = await tool.body.run(job)
            if tool.definition.output is not None:
                effect = _held_to_its_schema(tool.definition.output, effect, mask=self._mask_values)
            faults.point("call.body.left")
            if self._review_output is not None:
                effect = await _reviewed_output(self._review_output, checked, effect)
            return effect
        except ToolError as error:
            return Effect(ToolOutcome.error(str(error)))
        except (PathEscape, PathUnusable) as error:
            return Effect(ToolOutcome.error(f"Path refused: {error}.", Reason.PATH_REFUSED))
        except SandboxUnavailable as error:
            return Effect(ToolOutcome.error(str(error), Reason.SANDBOX_UNAVAILABLE))
        except BaseException as error:
            if comes_from_outside(error):
                raise
            log.exception("tool %s failed in call %s", walk.name, recorded.call_id)
            return Effect(ToolOutcome.error(f"{walk.name} failed: {short(error)}"))

    async def _review(
        self, recorded: Recorded, outcome: ToolOutcome, changes: ChangeSet
    ) -> Reviewed | Modify | ToolOutcome:
        """Whether staged changes become real. One question a call: none here if one was asked before."""
        if recorded.approved.review == "before":
            return Reviewed(recorded, recorded.approved.approved_by or recorded.approved.rule)
        verdict = self._policy.decide(recorded.checked)
        if verdict.decision == "deny":  # it was changed while the call ran
            return denied(verdict)
        request = self._question(recorded.checked, verdict, changes)
        decision = await self._decide(request)
        if isinstance(decision, Approve):
            await self._keep_grant(decision, request, recorded.checked)
            return Reviewed(recorded, decision.by, request.approval_id)
        if isinstance(decision, Modify):
            return decision
        if isinstance(decision, Park):
            return await self._park(request, recorded.checked, recorded, changes, broken=outcome.invalid_output)
        no = said_no(decision)
        return no.with_(text=f"{no.text} The changes were dropped; nothing was changed.", reason=for_changes(no.reason))

    async def _commit(self, walk: Walk, reviewed: Reviewed, outcome: ToolOutcome, changes: ChangeSet) -> ToolOutcome:
        """Make the staged changes real, all or none, and say what became of them."""
        if self._changes is None:
            return ToolOutcome.error(
                "This executor keeps no store for changes; nothing was changed.", Reason.CANNOT_STAGE
            )
        walk.change_digest = changes.digest
        digest = walk.change_digest

        async def begun() -> None:
            try:
                await self._journal.commit_begin(reviewed, digest)
            except StaleEpoch:  # another process has the call now, and may commit it
                walk.may_be_real = True
                raise
            walk.may_be_real = True

        async def ended() -> None:
            walk.may_be_real = True
            await self._journal.commit_end(reviewed, digest)

        try:
            await self._changes.commit(reviewed.recorded.call_id, changes, begun=begun, ended=ended)
        except ChangeConflict as error:
            return ToolOutcome.error(
                f"Conflict: {error}. Nothing was changed.",
                Reason.CONFLICT,
                changes=self._report(changes, committed=False),
            )
        except ChangeError as error:
            return ToolOutcome.error(
                f"The changes could not be made: {error}",
                Reason.COMMIT_FAILED,
                changes=self._report(changes, committed=False),
            )
        return outcome.with_(changes=self._report(changes, committed=True))

    async def _settle(self, walk: Walk, outcome: ToolOutcome) -> ToolOutcome:
        """Complete the outcome, keep within the cap, and make it durable before anybody reads it."""
        if walk.settled:
            return outcome
        final = self._cap.apply(self._completed(walk, outcome))
        try:
            if walk.recorded is None:
                if final.status != "pending":
                    await self._journal.refuse(walk.call_id, walk.name, walk.checked, final)
            elif final.status != "pending":
                await self._journal.settle(walk.recorded, final, change_digest=walk.change_digest)
        except ApprovalError as error:  # its approval was used elsewhere, and so the call has its outcome there
            return self._completed(walk, ToolOutcome.error(f"Refused: {error}.", Reason.APPROVAL_EXPIRED))
        except JournalError as error:
            log.exception("the outcome of call %s could not be recorded", walk.call_id)
            return self._completed(walk, without_journal(walk, error))
        walk.settled = True
        return final

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────

    def _question(self, checked: Checked, verdict: Verdict, changes: ChangeSet | None) -> ApprovalRequest:
        registered = checked.registered
        now = self._clock()
        pattern = offer(checked) if verdict.can_grant else None
        return ApprovalRequest(
            approval_id=new_call_id(),
            call_id=checked.proposed.call_id,
            tool=registered.canonical_id,
            title=registered.model_name,
            risk=registered.tool.definition.risk_level,
            source=registered.source,
            arguments=deepcopy(checked.arguments),  # whoever is asked changes nothing by changing his own
            binding=checked.binding(self._policy.version),
            why=verdict.why,
            asked_at=now,
            expires_at=now + self._approval_ttl,
            description=registered.tool.definition.description,
            changes=changes,
            diff=self._changes.diff(changes) if self._changes is not None and changes is not None else "",
            staged=registered.tool.body.staged,
            can_grant=pattern is not None,
            offer=pattern,
            enforcement=str(getattr(registered.tool.body, "walls", "")),
            run_id=checked.proposed.origin.run_id,
            agent=checked.proposed.origin.agent,
            session=self.session,
            workspace=checked.workspace_id,
            requested_paths=dict(checked.requested_paths),
            resolved_paths=dict(checked.resolved_paths),
        )

    async def _granted(self, checked: Checked, verdict: Verdict) -> Grant | None:
        """The lasting approval that covers this call, where policy lets one count."""
        if not verdict.can_grant:
            return None
        for grant in await self._grants.grants(self.session):
            if covers(grant, checked, session=self.session, policy=self._policy.version):
                return grant
        return None

    async def _keep_grant(self, answer: Approve, request: ApprovalRequest, checked: Checked) -> None:
        """Keep the lasting approval that came with an answer. One that may not be is dropped: it was a yes, once."""
        if answer.grant is None:
            return
        try:
            grant = make_grant(
                answer.grant,
                checked,
                allowed=request.can_grant,
                session=self.session,
                policy=self._policy.version,
                by=answer.by,
                at=self._clock(),
            )
        except ApprovalError as error:
            log.warning("call %s was approved once: %s", request.call_id, error)
            return
        await self._grants.add_grant(grant)

    async def _decide(self, request: ApprovalRequest) -> Decision:
        """Ask. Nobody there, a broken approver and a late answer all mean no."""
        if self.approver is None:
            return Unavailable("nobody is there to ask")
        try:
            with anyio.fail_after(max(0.0, request.expires_at - self._clock())):
                return await self.approver.decide(request)
        except TimeoutError:
            return Unavailable("nobody answered in time")
        except Exception as error:
            log.exception("the approver failed on call %s", request.call_id)
            return Unavailable(f"the approver failed: {short(error)}")

    async def _park(
        self,
        request: ApprovalRequest,
        checked: Checked,
        recorded: Recorded | None,
        changes: ChangeSet | None,
        *,
        broken: bool = False,
    ) -> ToolOutcome:
        """Keep the question until it is answered. ``broken``: the call ran, and its result breaks its own schema."""
        parked = ParkedCall(
            approval_id=request.approval_id,
            call_id=request.call_id,
            tool=request.tool,
            arguments=checked.arguments,
            binding=request.binding,
            question={
                **request.to_json(),
                "origin": asdict(checked.proposed.origin),
                **({"invalid_output": True} if broken else {}),
            },
            asked_at=request.asked_at,
            expires_at=request.expires_at,
            run_id=request.run_id,
            change_digest=None if changes is None else changes.digest,
        )
        try:
            if changes is not None and self._changes is not None:
                await self._changes.hold(request.call_id, changes)
            await self._journal.park(parked, checked, recorded)
        except ApprovalError as error:
            return said_no(Unavailable(str(error)))
        return ToolOutcome.pending(
            f"Waiting for approval {request.approval_id}. Nothing has happened yet.", request.approval_id
        )

    async def _resumed(self, walk: Walk, approval_id: str) -> ToolOutcome:
        """The walk of a call that waited for an answer."""
        parked, answer, held = await self._journal.parked(approval_id)
        walk.call_id, walk.name = parked.call_id, parked.tool
        if held is not None:
            walk.recorded = self._recorded_again(walk, parked, held)
        if answer is None:
            return ToolOutcome.pending(f"Approval {approval_id} is still waiting for an answer.", approval_id)
        if answer.verdict == "reject":
            return await self._drop_parked(parked, Reject(answer.why, answer.by))
        if answer.verdict == "modify":
            dropped = await self._settle(walk, await self._drop_parked(parked, Reject("edited", answer.by)))
            if not walk.settled:  # somebody else went on with it, or the journal cannot be used
                return dropped
            arguments = self._edited(walk, Modify(answer.arguments or {}, answer.by))
            self._start_again(walk)
            return await self._walk(walk, arguments, _origin_of(parked))
        if walk.recorded is not None:
            return await self._commit_parked(walk, parked, walk.recorded, answer.by)
        return await self._run_parked(walk, parked, answer)

    def _recorded_again(self, walk: Walk, parked: ParkedCall, held: HeldIntent) -> Recorded:
        """The stage at which a call was parked after it ran staged. Nothing is checked again: nothing runs again."""
        registered = self.registry.find(parked.tool)
        if registered is None:
            raise ApprovalError(f"the tool {parked.tool!r} is not here, so its changes stay as they are")
        proposed = Proposed(parked.call_id, registered, dict(parked.arguments), _origin_of(parked))
        walk.checked = Checked(proposed, parked.arguments)
        return Recorded(Approved(walk.checked, "changes", "parked"), held.idempotency_key, held.sequence, held.epoch)

    async def _run_parked(self, walk: Walk, parked: ParkedCall, answer: Answer) -> ToolOutcome:
        """From the very beginning, with the arguments that were approved; any difference asks again."""
        proposed = self._propose(walk, parked.arguments, _origin_of(parked), decoded=True)
        if isinstance(proposed, ToolOutcome):
            return proposed
        checked = self._check(walk, proposed)
        if isinstance(checked, ToolOutcome):
            return checked
        verdict = self._policy.decide(checked)
        if verdict.decision == "deny":
            return denied(verdict)
        if checked.binding(self._policy.version) != parked.binding:
            request = self._question(checked, verdict, None)
            return await self._park(request, checked, None, None)
        approved = Approved(
            checked,
            "before",
            verdict.rule,
            parked.approval_id,
            answer.by,
            parked.binding,
            parked.asked_at,
            answer.at,
        )
        recorded, effect = await self._carry_out(walk, approved)
        if not effect.changes or effect.outcome.status != "ok":
            return effect.outcome
        return await self._commit(walk, Reviewed(recorded, answer.by), effect.outcome, effect.changes)

    def _objection(self, walk: Walk, parked: ParkedCall) -> ToolOutcome | None:
        """Why an approval of changes counts no longer: the call could not be made so today, or policy says no."""
        proposed = self._propose(walk, parked.arguments, _origin_of(parked), decoded=True)
        checked = proposed if isinstance(proposed, ToolOutcome) else self._check(walk, proposed)
        if isinstance(checked, ToolOutcome):
            return checked
        verdict = self._policy.decide(checked)
        if verdict.decision == "deny":
            return denied(verdict)
        if checked.binding(self._policy.version) != parked.binding:
            return ToolOutcome.error(
                "The tool or the policy changed after this was approved. Its changes were dropped; call it again.",
                Reason.APPROVAL_EXPIRED,
            )
        return None

    async def _commit_parked(self, walk: Walk, parked: ParkedCall, recorded: Recorded, by: str) -> ToolOutcome:
        objection = self._objection(walk, parked)
        if objection is not None:
            await self._drop_parked(parked, Reject())
            return objection
        changes = await self._changes.held(parked.call_id) if self._changes is not None else None
        if changes is None or changes.digest != parked.change_digest:
            return ToolOutcome.error(
                "The changes that were approved are no longer kept; nothing was changed.", Reason.COMMIT_FAILED
            )
        made = ToolOutcome.ok("The approved changes were made.")
        if parked.question.get("invalid_output"):
            made = made.with_broken_output("as was found when it ran, before its changes were approved")
        return await self._commit(walk, Reviewed(recorded, by, parked.approval_id), made, changes)

    async def _drop_parked(self, parked: ParkedCall, answer: Reject) -> ToolOutcome:
        if self._changes is not None and parked.change_digest is not None:
            await self._changes.drop(parked.call_id)
        return said_no(answer)

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────

    def _edited(self, walk: Walk, edit: Modify) -> Mapping[str, Any]:
        walk.edits += 1
        if walk.edits > MAX_EDITS:
            raise _EditedTooOften
        walk.edited_arguments, walk.edited_by, walk.checked = edit.arguments, edit.by, None
        return edit.arguments

    def _start_again(self, walk: Walk) -> None:
        walk.call_id, walk.recorded, walk.checked, walk.settled = new_call_id(), None, None, False

    def _report(self, changes: ChangeSet | None, *, committed: bool) -> ChangesReport | None:
        if not changes or self._changes is None:
            return None
        paths = tuple(path.decode("utf-8", "backslashreplace") for path in changes.paths)
        return ChangesReport(changes.digest, paths, self._changes.diff(changes), committed)

    def _completed(self, walk: Walk, outcome: ToolOutcome) -> ToolOutcome:
        checked, edited = walk.checked, walk.edited_arguments
        if edited is not None and checked is not None:  # what ran, after defaults and resolution
            edited = checked.arguments
        return replace(
            outcome,
            text=outcome.text if edited is None else f"{edited_to(edited)}\n{outcome.text}",
            call_id=walk.call_id,
            tool=checked.proposed.registered.canonical_id if checked is not None else walk.name,
            duration_ms=(time.perf_counter() - walk.started) * 1000,
            edited_arguments=edited,
        )


# ── texts and decisions, pure ────────────────────────────────────────────────────────────────────────────────────


def _require_workable(timeout: float, approval_ttl: float, max_output_bytes: int, max_parallel: int) -> None:
    require_seconds("timeout", timeout)
    require_seconds("approval_ttl", approval_ttl)
    require_whole("max_output_bytes", max_output_bytes)
    require_whole("max_parallel", max_parallel)


def _require_text(call_id: str) -> None:
    """An id of the host's own making goes to every store as it is, together with its neighbours' in one commit."""
    if "\0" in call_id or not is_unicode(call_id):
        raise ConfigurationError(f"the call id {call_id!r} is not Unicode text without NUL, so no journal can keep it")


def _spill_directory(given: str | None, workspace: Workspace | None) -> str:
    """Where whole outputs go: never into the workspace, where tools could read or change them."""
    elsewhere = os.path.join(tempfile.gettempdir(), f"handrail-outputs-{os.geteuid()}")
    wanted = (given,) if given is not None else (default_spill_directory(), elsewhere)
    for directory in wanted:
        place = os.path.realpath(directory)
        if workspace is None or not os.path.join(place, "").startswith(os.path.join(workspace.path, "")):
            return directory
    raise ConfigurationError(
        f"whole outputs would be kept in {wanted[0]!r}, inside the workspace; name a spill_directory outside it"
    )


def default_spill_directory() -> str:
    """Where whole outputs are kept unless the host says otherwise: the user's private state directory."""
    return os.path.join(platformdirs.user_state_dir("handrail"), "outputs")


def _held_to_its_schema(output: Schema | None, effect: Effect, *, mask: bool) -> Effect:
    """Mark a completed call whose result breaks its declared schema. What happened stays as it is.

    The result is the value; where there is none, a text that fits the schema is a result too.
    """
    outcome = effect.outcome
    if output is None or not outcome.succeeded or outcome.invalid_output:
        return effect
    wrong = output.errors(outcome.value, mask=mask, root="the result")
    if not wrong or (outcome.value is None and not output.errors(outcome.text)):
        return effect
    return replace(effect, outcome=outcome.with_broken_output("; ".join(wrong)))


async def _reviewed_output(reviewer: OutputReviewer, checked: Checked, effect: Effect) -> Effect:
    """What the model may read of an effect. A reviewer that fails withholds it; status and changes stay as they are."""
    try:
        found = reviewer(checked, effect.outcome)
        said = await found if inspect.isawaitable(found) else found
        return replace(effect, outcome=effect.outcome.with_(text=said.text, value=said.value, content=said.content))
    except Exception:
        log.exception("the reviewer of outputs failed on call %s", checked.proposed.call_id)
        withheld = "The output was withheld: it could not be reviewed."
        return replace(effect, outcome=effect.outcome.with_(text=withheld, value=None, content=()))


def _allowed(checked: Checked, verdict: Verdict) -> Approved | None:
    return Approved(checked, "before", verdict.rule) if verdict.decision == "allow" else None


def _refuse_if_another(approved: Approved, policy_version: str) -> None:
    """The last look before the intent: what was approved is what will run. Raises :class:`ApprovalError`."""
    if approved.binding != approved.checked.binding(policy_version):
        raise ApprovalError("something changed after it was approved; ask again")


def _origin_of(parked: ParkedCall) -> Origin:
    """Who proposed a call that waited."""
    return Origin(**parked.question.get("origin", {"run_id": parked.run_id}))
