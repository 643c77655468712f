"""Everything a host may set about an agent. All of it is trusted; nothing of it is ever read from the workspace."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from handrail.agent.transcript import TranscriptStore
from handrail.agent.valves import Limits
from handrail.approval.decision import Approver
from handrail.approval.policy import Policy
from handrail.bounds import require_seconds, require_whole
from handrail.changes.keeper import ChangeKeeper
from handrail.executor import ToolExecutor
from handrail.journal.protocol import CallJournal
from handrail.models.client import ModelClient
from handrail.models.retry import RetryPolicy
from handrail.workspace import AnyPath, Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What an :class:`~handrail.agent.loop.Agent` is made from.

    ``workspace``: the one directory its tools may reach; ``None`` for tools without paths. ``model``: who is asked.
    ``approver``, ``policy``, ``journal``, ``changes`` and ``timeout`` are the executor's (see
    :class:`~handrail.executor.ToolExecutor`); give ``executor`` instead to bring one that is made already.
    ``recover``: awaited before a run is resumed, to settle what a crash interrupted in the journal.
    ``instructions`` are added to the standing ones. ``transcripts``: where runs are kept; the default is the user's
    state directory. ``project_notes``: the workspace's file that is shown to the model as untrusted context, ``None``
    for none. ``context_tokens``: summarise when the conversation is longer than about that many tokens.

    Raises :class:`~handrail.errors.ConfigurationError` for a number that cannot work.
    """

    model: ModelClient
    workspace: AnyPath | Workspace | None = None
    approver: Approver | None = None
    policy: Policy | None = None
    journal: CallJournal | None = None
    changes: ChangeKeeper | None = None
    executor: ToolExecutor | None = None
    recover: Callable[[], Awaitable[object]] | None = None
    timeout: float = 60.0
    limits: Limits = field(default_factory=Limits)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    instructions: str = ""
    transcripts: TranscriptStore | None = None
    project_notes: str | None = "AGENTS.md"
    context_tokens: int = 120_000
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        require_whole("context_tokens", self.context_tokens)
        if self.max_output_tokens is not None:
            require_whole("max_output_tokens", self.max_output_tokens)
