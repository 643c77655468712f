"""ToolRegistry: the tools there are, under names that never meet."""

from collections.abc import Iterable, Iterator

from handrail.call import RegisteredTool
from handrail.errors import NameCollision, ToolDefinitionError
from handrail.names import model_name
from handrail.tool import Handler, Plugin, Tool, ToolDef


class ToolRegistry:
    """Holds tools by the name the model sees; also finds them by canonical id or declared name."""

    def __init__(self) -> None:
        self._by_model_name: dict[str, RegisteredTool] = {}
        self._by_other_name: dict[str, RegisteredTool] = {}

    def register_from_def(self, definition: ToolDef, handler: Handler, *, staged: bool = False) -> RegisteredTool:
        """Join a definition with a handler and register the tool. Raises :class:`ToolDefinitionError`."""
        return self.register(Tool(definition, handler, staged=staged))

    def register(self, tool: Tool, *, plugin: str = "host", source: str = "host", alias: str = "") -> RegisteredTool:
        """Register one tool. ``plugin`` is the first part of its canonical id, ``alias`` an MCP server's name.

        Raises :class:`NameCollision`, naming both, when two tools would meet under one name.
        """
        canonical = f"{plugin}:{alias}/{tool.name}" if alias else f"{plugin}:{tool.name}"
        registered = RegisteredTool(tool, canonical, model_name(tool.name, alias), source)
        there = self._by_model_name.get(registered.model_name)
        if there is not None:
            raise NameCollision(
                f"{canonical!r} and {there.canonical_id!r} would both be offered as {registered.model_name!r}; "
                "rename one, or leave one out"
            )
        self._by_model_name[registered.model_name] = registered
        self._by_other_name[canonical] = registered
        return registered

    def register_plugin(self, plugin: Plugin, *, only: Iterable[str] | None = None) -> list[RegisteredTool]:
        """Register a plugin's tools, or only the named ones, all or none of them.

        Raises :class:`ToolDefinitionError` for a name the plugin does not have.
        """
        wanted = None if only is None else set(only)
        if wanted is not None and (missing := wanted - {tool.name for tool in plugin.tools}):
            known = ", ".join(sorted(tool.name for tool in plugin.tools))
            raise ToolDefinitionError(f"plugin {plugin.name!r} has no tool {min(missing)!r}; it has: {known}")
        tools = [tool for tool in plugin.tools if wanted is None or tool.name in wanted]
        before = dict(self._by_model_name), dict(self._by_other_name)
        try:
            return [self._from_plugin(plugin, tool) for tool in tools]
        except ToolDefinitionError:
            self._by_model_name, self._by_other_name = before
            raise

    def _from_plugin(self, plugin: Plugin, tool: Tool) -> RegisteredTool:
        return self.register(tool, plugin=plugin.name, source=plugin.source, alias=plugin.alias)

    def remove(self, canonical_id: str) -> None:
        """Take a tool out; unknown ids are ignored (it is gone either way)."""
        registered = self._by_other_name.pop(canonical_id, None)
        if registered is not None:
            del self._by_model_name[registered.model_name]

    def find(self, name: str) -> RegisteredTool | None:
        """The tool with this model-facing name or canonical id, or ``None``."""
        return self._by_model_name.get(name) or self._by_other_name.get(name)

    @property
    def names(self) -> list[str]:
        """The model-facing names, sorted."""
        return sorted(self._by_model_name)

    def __iter__(self) -> Iterator[RegisteredTool]:
        return iter(list(self._by_model_name.values()))

    def __len__(self) -> int:
        return len(self._by_model_name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None
