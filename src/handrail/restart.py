"""After a crash: recover a journal with the tools of an executor. The only place where both are known.

A safe call that may run again goes in by the same door as every call, under its own id: guard, policy and approver see
it anew.
"""

from collections.abc import Awaitable, Callable, Mapping

from handrail.call import Origin
from handrail.executor import ToolExecutor
from handrail.journal.intent import Declaration, Intent
from handrail.journal.recovering import Host, Reconcile, Recovered
from handrail.journal.recovering import recover as recover_journal
from handrail.journal.stored import StoredJournal
from handrail.outcome import ToolOutcome


async def recover(
    executor: ToolExecutor,
    journal: StoredJournal,
    *,
    reconcile: Mapping[str, Reconcile] | None = None,
    roll_forward: Callable[[str], Awaitable[bool]] | None = None,
    drop: Callable[[str], Awaitable[None]] | None = None,
    dry_run: bool = False,
) -> list[Recovered]:
    """Settle what an earlier process left behind; returns what was done about each call, oldest first.

    ``journal`` is the executor's own. ``reconcile``: by canonical tool id, a function that looks whether an intent's
    effect happened. ``roll_forward`` and ``drop`` come from the store of changes (see
    :class:`~handrail.journal.recovering.Host`).
    """
    workspace = executor.workspace.path if executor.workspace is not None else ""

    def present(intent: Intent) -> Declaration | None:
        registered = executor.registry.find(intent.declaration.tool)
        return None if registered is None else journal.declaration(registered, workspace)

    async def replay(intent: Intent) -> ToolOutcome:
        origin = Origin(intent.run_id, intent.step, intent.tool_index, intent.provider_call_id, "recovery")
        return await executor.replay(intent.declaration.tool, intent.arguments, call_id=intent.call_id, origin=origin)

    host = Host(present=present, replay=replay, roll_forward=roll_forward, drop=drop, reconcile=reconcile or {})
    return await recover_journal(journal, host, dry_run=dry_run)
