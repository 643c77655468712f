"""A program that is killed: an agent with a real journal and a real transcript, and a scripted model.

Each line on standard input is a victim, ``[DIRECTORY, KILL_AT, HOW, RUN]`` in JSON: a process of its own, forked from
this one, that runs (or resumes RUN) in DIRECTORY, kills itself with SIGKILL at the KILL_AT-th event, effect or write of
the transcript (0: never), and appends a line to ``effects`` whenever a call has its effect. What it says goes to
``said``. ``HOW`` is ``killed``, or ``power-cut``: then the transcript loses what was written but not flushed. The
answer is its exit status.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

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

    def __init__(self, kill_at: int, how: str) -> None:
        self.left = kill_at
        self.seen = 0
        self.how = how
        self.transcript = ""
        self.flushed = 0

    def moment(self, *_: Any) -> None:
        self.seen += 1
        if self.seen == self.left:
            if self.how == "power-cut" and self.transcript:
                os.truncate(self.transcript, self.flushed)
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyTranscripts(FileTranscripts):
    """The real store, with a moment before and after each durable write."""

    def __init__(self, directory: str, deadly: Deadly) -> None:
        super().__init__(directory)
        self._deadly = deadly

    def create(self, run_id: str) -> Transcript:
        return self._watched(super().create(run_id), run_id)

    def open(self, run_id: str) -> Transcript:
        return self._watched(super().open(run_id), run_id)

    def _watched(self, transcript: Transcript, run_id: str) -> Transcript:
        keep = transcript.keep
        self._deadly.transcript = os.path.join(self.directory, f"{run_id}.jsonl")
        self._deadly.flushed = os.path.getsize(self._deadly.transcript)

        def watched(data: bytes, durable: bool) -> None:
            self._deadly.moment()
            keep(data, durable)
            if durable:
                self._deadly.flushed = os.path.getsize(self._deadly.transcript)
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


async def main(directory: str, kill_at: int, how: str, run_id: str | None) -> None:
    deadly = Deadly(kill_at, how)
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


def victim(directory: str, kill_at: int, how: str, run_id: str | None) -> NoReturn:
    said = os.open(os.path.join(directory, "said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    status = 1
    try:
        asyncio.run(main(directory, kill_at, how, run_id))
        sys.stdout.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            victim(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
