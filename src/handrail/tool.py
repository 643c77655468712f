"""Declarations only: what a tool is, and the names that whoever writes one needs.

A :class:`ToolDef` says what a tool takes and what it may do (``definition``). A :class:`Tool` joins it with a *body*:
the code that carries one job out (``body``). Bodies come in kinds that the corridor does not tell apart: a host handler
(``host``), code and commands in a cell (``sandbox``), a remote tool (``mcp``). A :class:`Plugin` is a named set of
tools.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from handrail.body import Body as Body
from handrail.body import Effect as Effect
from handrail.body import Handler as Handler
from handrail.body import Job as Job
from handrail.body import Signal as Signal
from handrail.definition import Capability as Capability
from handrail.definition import Replay as Replay
from handrail.definition import RiskLevel as RiskLevel
from handrail.definition import ToolDef as ToolDef
from handrail.definition import is_customary_path as is_customary_path
from handrail.errors import ToolDefinitionError
from handrail.host import HostBody


class Tool:
    """A declaration joined with its body.

    ``Tool(definition, execute)`` makes a host tool from ``execute(args)`` or ``execute(args, signal)``, sync or
    async. A handler may also ask, by parameter name, for ``signal``, ``workspace`` or ``job``. With ``body=`` any
    other kind of body is joined. ``staged`` promises that ``execute`` returns an :class:`Effect` and touches nothing.
    """

    __slots__ = ("body", "definition", "execute")

    def __init__(
        self, definition: ToolDef, execute: Handler | None = None, *, body: Body | None = None, staged: bool = False
    ) -> None:
        if (execute is None) == (body is None):
            raise ToolDefinitionError(f"tool {definition.name!r} needs either an execute function or a body")
        self.definition = definition
        self.body: Body = body if body is not None else HostBody(cast("Handler", execute), definition, staged=staged)
        self.execute: Handler = execute if execute is not None else cast("Body", body).run

    @property
    def name(self) -> str:
        """The declared name."""
        return self.definition.name

    @property
    def description(self) -> str:
        """What the model is told."""
        return self.definition.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments."""
        return self.definition.parameters

    @property
    def replay(self) -> Replay:
        """``safe`` or ``never``."""
        return self.definition.replay

    @property
    def replay_key(self) -> str | None:
        """What identifies this behaviour across versions, e.g. ``builtin:read:v1``."""
        return self.definition.replay_key

    def __repr__(self) -> str:
        return f"Tool({self.definition.name!r})"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A named set of tools, as ``--plugin NAME`` selects it. ``source`` says where it came from, for people.

    ``alias`` is set where the tools are an MCP server's: they are then ``name:alias/tool``.
    """

    name: str
    tools: tuple[Tool, ...]
    source: str = "host"
    alias: str = ""
