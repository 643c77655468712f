"""What the agent's tests share: a few tools that count, and an agent over them."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from handrail.agent.config import AgentConfig
from handrail.agent.conversation import messages_of
from handrail.agent.events import AgentEvent
from handrail.agent.loop import Agent, RunResult
from handrail.agent.transcript import MemoryTranscripts, Transcript
from handrail.approval.decision import AlwaysApprove
from handrail.executor import ToolExecutor
from handrail.models.client import AssistantMessage, Message, ResultMessage
from handrail.registry import ToolRegistry
from handrail.testing import MemoryJournal
from handrail.tool import RiskLevel, ToolDef


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Kit:
    """An agent whose tools count how often they ran, by what they were asked."""

    def __init__(self, model: Any, *, workspace: Any = None, approver: Any = None, **settings: Any) -> None:
        self.ran: Counter[str] = Counter()
        self.order: list[str] = []
        self.journal = settings.pop("journal", None) or MemoryJournal()
        self.transcripts = settings.pop("transcripts", None) or MemoryTranscripts()
        skills = settings.pop("skills", ())
        registry = ToolRegistry()
        executor = ToolExecutor(
            registry,
            workspace=workspace,
            approver=approver if approver is not None else AlwaysApprove(),
            journal=self.journal,
            policy=settings.pop("policy", None),
        )
        config = AgentConfig(
            model=model, executor=executor, journal=self.journal, transcripts=self.transcripts, **settings
        )
        self.agent = Agent(config, skills=skills)
        self.events: list[AgentEvent] = []
        self.add("look", RiskLevel.READ_ONLY)
        self.add("act", RiskLevel.MUTATION)
        self.add("fail", RiskLevel.READ_ONLY)

    def add(self, name: str, risk: RiskLevel, handler: Any = None) -> None:
        async def counted(arguments: Mapping[str, Any]) -> str:
            what = f"{name} {arguments.get('what', '')}".strip()
            self.ran[what] += 1
            self.order.append(what)
            if name == "fail":
                raise ValueError("it fails")
            return f"did {what}"

        definition = ToolDef(
            name=name,
            description=f"{name} at something",
            parameters={
                "type": "object",
                "properties": {"what": {"type": "string"}},
                "additionalProperties": False,
            },
            risk_level=risk,
        )
        self.agent.tools.register_from_def(definition, handler or counted)

    async def run(self, prompt: str = "do it", **options: Any) -> RunResult:
        return self.checked(await self.agent.run(prompt, on_event=self.events.append, **options))

    async def resume(self, run_id: str, **options: Any) -> RunResult:
        return self.checked(await self.agent.resume(run_id, on_event=self.events.append, **options))

    def checked(self, result: RunResult) -> RunResult:
        assert_valid(self.transcript(result.run_id))
        return result

    def transcript(self, run_id: str) -> Transcript:
        transcript = self.transcripts.open(run_id)
        transcript.close()
        return transcript

    def results(self, run_id: str) -> list[ResultMessage]:
        return [item for item in messages_of(self.transcript(run_id).records) if isinstance(item, ResultMessage)]

    def named(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def assert_valid(transcript: Transcript) -> None:
    """Every call is followed at once by its one result, in order: said here independently of the code under test."""
    expected: list[str] = []
    for message in messages_of(transcript.records):
        if isinstance(message, ResultMessage):
            assert expected, f"a result without a call: {message}"
            assert expected.pop(0) == message.call_id
            continue
        assert not expected, f"calls without results before {message}"
        expected = [call.call_id for call in getattr(message, "calls", ())]
    assert not expected


def calls_are_paired(messages: Sequence[Message]) -> bool:
    """Whether every call is followed at once by its one result, in order: what every provider demands."""
    expected: list[str] = []
    for message in messages:
        if isinstance(message, ResultMessage):
            if not expected or expected.pop(0) != message.call_id:
                return False
        elif expected:
            return False
        elif isinstance(message, AssistantMessage):
            expected = [call.call_id for call in message.calls]
    return not expected
