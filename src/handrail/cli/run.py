"""``handrail run [PROMPT]``: give a task to a model with tools; without a prompt, an interactive session."""

import asyncio
import signal as signals
import sys
from typing import Annotated

import typer

from handrail.agent.config import AgentConfig
from handrail.agent.events import AgentEvent, RunStarted
from handrail.agent.loop import Agent, RunResult
from handrail.agent.valves import Limits, StopReason
from handrail.bounds import require_seconds, require_whole
from handrail.call import new_call_id
from handrail.cli.notice import tell_interrupted
from handrail.cli.options import (
    ApproveOption,
    JsonOption,
    McpConfigOption,
    McpOption,
    PluginOption,
    PolicyOption,
    SkillOption,
    WeakerOption,
    WorkspaceOption,
    is_terminal,
    names,
    standard_input,
)
from handrail.cli.session import Session, driven
from handrail.cli.show import say
from handrail.cli.views import JsonView, View, text_view
from handrail.errors import ConfigurationError
from handrail.models.catalog import open_model
from handrail.tool import Signal
from handrail.wiring import House, Settings, open_house

app = typer.Typer(add_completion=False)

EXIT_STATUS = {StopReason.DONE: 0, StopReason.AWAITING_APPROVAL: 3, StopReason.CANCELLED: 130}


@app.command()
def run(
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The task; '-' reads it from standard input.")
    ] = None,
    workspace: WorkspaceOption = ".",
    plugin: PluginOption = None,
    skill: SkillOption = None,
    mcp: McpOption = None,
    mcp_config: McpConfigOption = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="PROVIDER:MODEL, or a name from your own models.toml."),
    ] = None,
    policy: PolicyOption = None,
    approve: ApproveOption = "ask",
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run: after an answer, or a crash.")
    ] = None,
    max_turns: Annotated[int, typer.Option(metavar="N", help="How often the model may be asked for one prompt.")] = 50,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Stop when the run has used that many tokens.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(metavar="S", help="Stop after so many seconds.")] = None,
    allow_weaker_walls: WeakerOption = False,
    json_: JsonOption = False,
) -> None:
    """Give a task to a model with tools. Without a prompt, start an interactive session.

    Exit status: 0 done, 1 stopped for another reason, 2 usage, 3 waits for an approval, 130 interrupted.
    """
    limits = _limits(max_turns, max_tokens, max_seconds)
    interactive = prompt is None and is_terminal(sys.stdin) and is_terminal(sys.stdout) and not json_
    task = None if interactive else _task(prompt, resume)
    settings = Settings(
        workspace=workspace,
        plugins=names(plugin),
        skills=tuple(skill or ()),
        mcp=names(mcp) or (),
        mcp_config=mcp_config,
        approve=approve,
        policy=policy,
        allow_weaker_walls=allow_weaker_walls,
        session=new_call_id(),
        door="agent",
    )
    if settings.mcp and not json_:  # a server may take its time
        say(f"starting {', '.join(settings.mcp)} …", err=True)
    with open_house(settings) as house:
        if resume is None:  # a run that is resumed settles them
            tell_interrupted(house)
        agent = agent_in(house, model, limits)
        if interactive:
            status = asyncio.run(Session(agent, house, resume=resume).run())
        else:
            status = asyncio.run(_once(agent, task, resume, JsonView() if json_ else text_view()))
    raise typer.Exit(status)


def _limits(turns: int, tokens: int | None, seconds: float | None) -> Limits:
    """How far a run may go, with each number refused under the name it was given by."""
    require_whole("--max-turns", turns)
    if tokens is not None:
        require_whole("--max-tokens", tokens)
    if seconds is not None:
        require_seconds("--max-seconds", seconds)
    return Limits(turns=turns, tokens=tokens, seconds=seconds)


def agent_in(house: House, model: str | None, limits: Limits) -> Agent:
    """An agent over an open house."""
    config = AgentConfig(
        model=open_model(model),
        executor=house.executor,
        journal=house.journal,
        recover=house.recover,
        limits=limits,
    )
    return Agent(config, skills=house.skills)


def _task(prompt: str | None, resume: str | None) -> str | None:
    """The prompt, from the command line or standard input; ``None`` where a run is only to be resumed."""
    if prompt not in (None, "-"):
        return prompt
    if prompt is None and resume is not None:
        return None
    text = standard_input()
    if not text.strip():
        raise ConfigurationError("there is no prompt: give one, or write it to standard input")
    return text


async def _once(agent: Agent, task: str | None, resume: str | None, view: View) -> int:
    """One task, or the rest of one. Ctrl-C stops it and leaves a whole transcript; once more leaves at once."""
    signal = Signal()
    loop = asyncio.get_running_loop()
    driving: list[str] = []

    def interrupt() -> None:
        if not signal.is_set():
            signal.set("interrupted")
            return
        view.pause()
        for run_id in driving[-1:]:
            _say_how_to_resume(run_id)
        loop.remove_signal_handler(signals.SIGINT)
        signals.raise_signal(signals.SIGINT)

    def heard(event: AgentEvent) -> None:
        if isinstance(event, RunStarted):
            driving.append(event.run_id)
        view.show(event)

    loop.add_signal_handler(signals.SIGINT, interrupt)
    try:
        result: RunResult | None = None
        if resume is not None:
            result = await driven(view, agent.resume(resume, signal=signal, on_event=heard))
        if task is not None and (result is None or result.stop is StopReason.DONE):
            result = await driven(view, agent.run(task, run_id=resume, signal=signal, on_event=heard))
        view.close()
        return 1 if result is None else _said(result)
    finally:
        view.close()
        await agent.aclose()
        loop.remove_signal_handler(signals.SIGINT)


def _said(result: RunResult) -> int:
    """Say how to go on with a run, and return the exit status."""
    if result.ended.resumable:
        _say_how_to_resume(result.run_id)
    for approval in result.approvals:
        say(f"waits for: handrail approvals approve {approval}", err=True)
    return EXIT_STATUS.get(result.stop, 1)


def _say_how_to_resume(run_id: str) -> None:
    say(f"resume with: handrail run --resume {run_id}", err=True)
