"""Where everything is joined. The only file that knows everyone; every door of ours builds its house here.

Everything in :class:`Settings` is trusted: it comes from the command line or from the host's code. Nothing is read from
the workspace.
"""

import importlib
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, Self

import platformdirs

from handrail.approval.console import ConsoleApprover
from handrail.approval.decision import AlwaysApprove, Approver, NeverApprove
from handrail.approval.inbox import InboxApprover
from handrail.approval.policy import Policy, RiskTable
from handrail.approval.policy_file import default_policy_path, load_policy
from handrail.builtins import BUILTIN_PLUGINS
from handrail.builtins.bash import bash_plugin
from handrail.changes.store import ChangeStore
from handrail.errors import ConfigurationError
from handrail.executor import ToolExecutor
from handrail.journal.records import Head
from handrail.journal.recovering import Host, Reconcile, Recovered, forget, left_behind
from handrail.journal.recovering import recover as recover_journal
from handrail.journal.sqlite import SqliteJournal, default_path
from handrail.mcp.catalog import load_catalog
from handrail.registry import ToolRegistry
from handrail.restart import recover
from handrail.sandbox.bodies import Cells
from handrail.sandbox.supervisor import Supervisor
from handrail.skills import Skill, load_skill
from handrail.tool import Plugin
from handrail.workspace import Workspace

PLUGIN_GROUP = "handrail.plugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a door was asked for.

    ``plugins`` is an allowlist of tool and plugin names; ``None`` means the built-in tools. ``approve`` says who
    answers when policy asks: ``always``, ``never``, ``ask`` (a person at the terminal) or ``park`` (keep the question).
    ``policy`` names a policy file; ``None`` means the user's own if there is one. Journal, staged
    changes and whole outputs lie in the user's private state directory.
    """

    workspace: str = "."
    plugins: tuple[str, ...] | None = None
    skills: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    mcp_config: str | None = None
    approve: str = "ask"
    policy: str | None = None
    journal: bool = True
    allow_weaker_walls: bool = False
    session: str = ""
    door: str = "library"


@dataclass(slots=True)
class House:
    """Everything a door needs, open. Close it, or use it as a context manager."""

    settings: Settings
    workspace: Workspace
    registry: ToolRegistry
    changes: ChangeStore
    journal: SqliteJournal | None
    executor: ToolExecutor
    skills: tuple[Skill, ...] = ()
    _open: ExitStack = field(default_factory=ExitStack)

    def interrupted(self) -> list[str]:
        """The ids of calls that a dead process left without an end. Opening a house settles none of them."""
        return [] if self.journal is None else [row.call_id for row in left_behind(self.journal)]

    async def recover(
        self, *, reconcile: Mapping[str, Reconcile] | None = None, replay: bool = True
    ) -> list[Recovered]:
        """Settle them: complete what was begun, run safe calls again, and say of the rest what can be proved.

        ``replay``: run safe calls again, with the tools of this house; otherwise they are left to a house that has
        theirs. ``reconcile`` as for :func:`handrail.restart.recover`. Doing it twice changes nothing.
        """
        if self.journal is None:
            return []
        if replay:
            return await recover(
                self.executor,
                self.journal,
                reconcile=reconcile,
                roll_forward=self._rolled_forward,
                drop=self.changes.drop,
            )
        host = Host(roll_forward=self._rolled_forward, drop=self.changes.drop, reconcile=reconcile or {})
        return await recover_journal(self.journal, host)

    async def prune(self, before: float) -> Head | None:
        """Drop the journal's records older than ``before``, as :meth:`StoredJournal.prune` does.

        Calls that ran staged and were forgotten (see :func:`~handrail.journal.recovering.forget`) are ended first.
        """
        if self.journal is None:
            return None
        await forget(self.journal, before, self.changes.drop)
        return await self.journal.prune(before)

    async def _rolled_forward(self, call_id: str) -> bool:
        return self.changes.fate(call_id) == "committed"  # opening the store carried unfinished commits to their end

    def close(self) -> None:
        """Close everything, in reverse order. Closing twice is harmless."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_house(settings: Settings, *, approver: Approver | None = None) -> House:
    """Build and open everything that ``settings`` asks for; on failure nothing stays open.

    ``approver`` answers instead of whom ``settings`` names: for doors that ask in a way of their own.

    Raises :class:`~handrail.errors.ConfigurationError` naming what cannot work and how to mend it.
    """
    with ExitStack() as opened:
        state = platformdirs.user_state_dir("handrail")
        workspace = opened.enter_context(Workspace(settings.workspace))
        changes = opened.enter_context(ChangeStore(state, workspace))
        journal = journal_for(settings, workspace)
        if journal is not None:
            opened.callback(journal.close)
        cells = cells_for(settings, opened.enter_context(supervisor_for(settings)), state)
        registry = ToolRegistry()
        register_plugins(registry, settings.plugins, cells)
        skills = tuple(load_skill(file) for file in settings.skills)
        for skill in skills:
            skill.register(registry, cells)
        decider = approver if approver is not None else approver_for(settings)
        if settings.mcp:
            opened.enter_context(joined_mcp(settings, registry, workspace, cells.supervisor, decider))
        executor = ToolExecutor(
            registry,
            workspace=workspace,
            approver=decider,
            policy=policy_for(settings, workspace),
            journal=journal,
            grants=journal,
            changes=changes,
            spill_directory=os.path.join(state, "outputs"),
            session=settings.session,
        )
        opened.callback(executor.close)
        return House(settings, workspace, registry, changes, journal, executor, skills, opened.pop_all())
    raise AssertionError("unreachable: nothing above swallows an exception")


@contextmanager
def joined_mcp(
    settings: Settings, registry: ToolRegistry, workspace: Workspace, supervisor: Supervisor, approver: Approver
) -> Generator[None]:
    """Start the chosen MCP servers, in a thread that keeps their connections, and register their tools.

    What speaks the protocol is an optional extra, so it is imported when a server was asked for.
    """
    joining: Any = importlib.import_module("handrail.mcp.joining")
    specs = load_catalog(settings.mcp_config, workspace=workspace.path).select(settings.mcp)
    servers = joining.servers_for(
        specs,
        supervisor=supervisor,
        workspace=workspace,
        approver=approver,
        state=platformdirs.user_state_dir("handrail"),
        weaker=settings.allow_weaker_walls,
    )
    with servers.in_thread():
        joining.register_servers(registry, servers)
        yield


def policy_for(settings: Settings, workspace: Workspace) -> Policy:
    """The named policy file, else the user's own, else the risk table."""
    if settings.policy is not None:
        return load_policy(settings.policy, workspace=workspace.path)
    own = default_policy_path()
    return load_policy(own, workspace=workspace.path) if os.path.exists(own) else RiskTable()


def journal_for(settings: Settings, workspace: Workspace) -> SqliteJournal | None:
    """The workspace's journal, which every process of the user shares; ``None`` where the door asked for none."""
    return SqliteJournal(default_path(workspace.path)) if settings.journal else None


def approver_for(settings: Settings) -> Approver:
    """Who answers."""
    kinds: dict[str, Callable[[], Approver]] = {
        "always": AlwaysApprove,
        "never": NeverApprove,
        "ask": ConsoleApprover,
        "park": InboxApprover,
    }
    if settings.approve not in kinds:
        raise ConfigurationError(f"--approve {settings.approve!r} is not one of: {', '.join(kinds)}")
    return kinds[settings.approve]()


def supervisor_for(settings: Settings) -> Supervisor:
    """The keeper of the cells; it starts nothing before a call needs one."""
    return Supervisor(allow_reduced=settings.allow_weaker_walls)


def cells_for(settings: Settings, supervisor: Supervisor, state: str) -> Cells:
    """Where inline code and commands run: staged, with nothing of the host's environment."""
    return Cells(
        supervisor,
        minimum_tier="reduced" if settings.allow_weaker_walls else "full",
        spill_directory=os.path.join(state, "outputs"),
    )


def register_plugins(registry: ToolRegistry, wanted: tuple[str, ...] | None, cells: Cells) -> None:
    """Register the built-in tools, or only what the allowlist names: tools of ours, or plugins that are installed.

    An installed plugin's code is loaded only when its name is on the list.
    """
    built_in = (*BUILTIN_PLUGINS, bash_plugin(cells))
    if wanted is None:
        for plugin in built_in:
            registry.register_plugin(plugin)
        return
    installed = {point.name: point for point in entry_points(group=PLUGIN_GROUP)}
    ours = {tool.name: plugin for plugin in built_in for tool in plugin.tools}
    for name in dict.fromkeys(wanted):
        if name in ours:
            registry.register_plugin(ours[name], only=[name])
        elif name in installed:
            registry.register_plugin(_loaded_plugin(name, installed[name].load()))
        else:
            known = ", ".join(sorted({*ours, *installed}))
            raise ConfigurationError(f"--plugin {name!r}: there is no such tool or plugin; there are: {known}")


def _loaded_plugin(name: str, found: object) -> Plugin:
    made = found() if callable(found) and not isinstance(found, Plugin) else found
    if not isinstance(made, Plugin):
        raise ConfigurationError(f"the installed plugin {name!r} is no handrail.Plugin, but {type(made).__name__}")
    return Plugin(name, made.tools, source=f"installed plugin {name}")
