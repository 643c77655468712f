"""A program that is killed: an agent with a real journal and a real transcript, and a scripted model.

``agent_victim.py DIRECTORY KILL_AT [RUN]``: runs (or resumes RUN), kills itself with SIGKILL at the KILL_AT-th event or
transcript write (0: never), and appends a line to ``effects`` whenever a call has its effect.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from handrail.agent.config import AgentConfig
from handrail.agent.loop import Agent
from handrail.agent.transcript import FileTranscripts, Transcript
from handrail.approval.decision import AlwaysApprove
from handrail.executor import ToolExecutor
from handrail.journal.sqlite import SqliteJournal
from handrail.models.client import ModelRequest, Reply, ResultMessage
from handrail.models.scripted import ScriptedModel, call, calls
from handrail.registry import ToolRegistry
from handrail.restart import recover
from handrail.tool import RiskLevel, ToolDef

PLAN = (
    calls(call("pay", {"to": "a"}), call("look", {"to": "1"}), call("look", {"to": "2"}), call("pay", {"to": "b"})),
    calls(call("look", {"to": "3"}), call("pay", {"to": "c"}), call("fail", {"to": "4"})),
    calls(call("pay", {"to": "d"}), call("look", {"to": "5"}), call("pay", {"to": "e"})),
)


class Deadly:
    """Counts moments, and dies at the one it was told."""

    def __init__(self, kill_at: int) -> None:
        self.left = kill_at
        self.seen = 0

    def moment(self, *_: Any) -> None:
        self.seen += 1
        if self.seen == self.left:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyTranscripts(FileTranscripts):
    """The real store, with a moment before and after each durable write."""

    def __init__(self, directory: str, deadly: Deadly) -> None:
        super().__init__(directory)
        self._deadly = deadly

    def create(self, run_id: str) -> Transcript:
        return self._watched(super().create(run_id))

    def open(self, run_id: str) -> Transcript:
        return self._watched(super().open(run_id))

    def _watched(self, transcript: Transcript) -> Transcript:
        keep = transcript.keep

        def watched(data: bytes) -> None:
            self._deadly.moment()
            keep(data)
            self._deadly.moment()

        transcript.keep = watched
        return transcript


def next_step(request: ModelRequest) -> Reply | str:
    """What the model says depends on the conversation alone, as a real model's answer would."""
    results = sum(isinstance(message, ResultMessage) for message in request.messages)
    done = 0
    for step in PLAN:
        if results == done:
            return step
        done += len(step.calls)
    return "All done."


async def main(directory: str, kill_at: int, run_id: str | None) -> None:
    deadly = Deadly(kill_at)
    journal = SqliteJournal(os.path.join(directory, "journal.sqlite"))
    registry = ToolRegistry()

    async def effect(arguments: Mapping[str, Any]) -> str:
        deadly.moment()
        fd = os.open(os.path.join(directory, "effects"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{arguments['to']}\n".encode())
        os.close(fd)
        deadly.moment()
        if arguments["to"] == "4":
            raise ValueError("this one fails")
        return f"did {arguments['to']}"

    for name, risk in (("pay", RiskLevel.MUTATION), ("look", RiskLevel.READ_ONLY), ("fail", RiskLevel.READ_ONLY)):
        parameters = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
        registry.register_from_def(ToolDef(name=name, parameters=parameters, risk_level=risk), effect)
    executor = ToolExecutor(registry, approver=AlwaysApprove(), journal=journal)
    config = AgentConfig(
        model=ScriptedModel([next_step] * 50),
        executor=executor,
        journal=journal,
        recover=lambda: recover(executor, journal),
        transcripts=DeadlyTranscripts(os.path.join(directory, "runs"), deadly),
    )
    agent = Agent(config)
    if run_id is None:
        result = await agent.run("Pay everybody.", on_event=deadly.moment)
    else:
        result = await agent.resume(run_id, on_event=deadly.moment)
    print(result.stop.value, deadly.seen)
    executor.close()
    journal.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
