"""A job as the corridor would hand it to a body, for bodies that are tried alone."""

from handrail.changes.store import ChangeStore
from handrail.tool import Job, RiskLevel, Signal, ToolDef


def job_in(store: ChangeStore) -> Job:
    """A call of a writing tool in the store's workspace."""
    definition = ToolDef("tried", "Writes.", {"type": "object"}, risk_level=RiskLevel.MUTATION)
    return Job(
        call_id="call",
        definition=definition,
        arguments={},
        workspace=store.workspace,
        idempotency_key="key",
        timeout=60.0,
        signal=Signal(),
        contents=store.contents,
    )
