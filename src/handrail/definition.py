"""What a tool takes and what it may do, in its author's words: checked when it is written, and only then."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, cast

from handrail.bounds import require_seconds
from handrail.errors import ToolDefinitionError
from handrail.names import model_name
from handrail.schema import Schema, digest_of, is_unicode


class RiskLevel(StrEnum):
    """How much a call can hurt. Members are ordered: ``RiskLevel.SAFE < RiskLevel.DANGEROUS``."""

    SAFE = "safe"
    READ_ONLY = "read_only"
    MUTATION = "mutation"
    DESTRUCTIVE = "destructive"
    DANGEROUS = "dangerous"

    @property
    def rank(self) -> int:
        """0 for ``safe`` up to 4 for ``dangerous``."""
        return _RANKS[self]

    def __lt__(self, other: str) -> bool:
        return _RANKS[self] < _RANKS[other]

    def __le__(self, other: str) -> bool:
        return _RANKS[self] <= _RANKS[other]

    def __gt__(self, other: str) -> bool:
        return _RANKS[self] > _RANKS[other]

    def __ge__(self, other: str) -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS: dict[str, int] = {risk: rank for rank, risk in enumerate(RiskLevel)}


class Replay(StrEnum):
    """What may be done with an interrupted call after a crash."""

    SAFE = "safe"  # may run again, if nothing about it changed
    NEVER = "never"  # is never run again; its outcome is unknown


@dataclass(frozen=True, slots=True)
class Capability:
    """What a tool needs. The cell compiles this into walls; everything not named is closed.

    ``reads``: the workspace is visible. ``writes``: the workspace may be changed. ``network``: sockets.
    ``exec``: may start other programs.
    """

    _: KW_ONLY
    reads: bool = True
    writes: bool = False
    network: bool = False
    exec: bool = False


CUSTOMARY_PATH_ARGS = ("path", "source", "destination", "cwd")
CUSTOMARY_PATH_ENDINGS = ("_path", "_file")


@dataclass(frozen=True, slots=True)
class ToolDef:
    """A tool's declaration, checked when it is made.

    ``parameters`` is a JSON Schema whose root is an object. ``path_args`` names the string properties that are paths
    in the workspace; ``None`` means the customary ones (``path``, ``source``, ``destination``, ``cwd``, and names
    ending in ``_path`` or ``_file``), also where the schema admits them without naming them. ``replay`` is ``never``
    unless ``safe`` is declared with a ``replay_key``. ``timeout`` is in seconds; ``None`` means the executor's.

    Raises :class:`~handrail.errors.ToolDefinitionError`, naming the offending place.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    risk_level: RiskLevel = RiskLevel.MUTATION
    path_args: tuple[str, ...] | None = None
    replay: Replay = Replay.NEVER
    replay_key: str | None = None
    capability: Capability = Capability()
    timeout: float | None = None
    output_schema: Mapping[str, Any] | None = None
    schema: Schema = field(init=False, repr=False, compare=False)
    output: Schema | None = field(init=False, repr=False, compare=False)
    guarded_args: tuple[str, ...] = field(init=False, repr=False, compare=False)
    guards_unnamed: bool = field(init=False, repr=False, compare=False)
    has_effects: bool = field(init=False, repr=False, compare=False)
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_kinds(self)
        model_name(self.name)
        where = f"tool {self.name!r}"
        put = object.__setattr__
        put(self, "risk_level", _member(RiskLevel, self.risk_level, f"{where}: risk_level"))
        put(self, "has_effects", self.risk_level > RiskLevel.READ_ONLY)
        put(self, "replay", _member(Replay, self.replay, f"{where}: replay"))
        _check_replay(self, where)
        if self.timeout is not None:
            require_seconds(f"{where}: timeout", self.timeout, refusal=ToolDefinitionError)
        put(self, "schema", Schema(self.parameters, where=f"{where}: parameters"))
        put(self, "parameters", self.schema.document)
        put(self, "output", _output_schema(self.output_schema, where))
        put(self, "path_args", None if self.path_args is None else tuple(self.path_args))
        put(self, "guarded_args", _guarded_args(self, where))
        put(self, "guards_unnamed", self.path_args is None and self.parameters.get("additionalProperties") is not False)
        put(self, "digest", digest_of(self.to_json()))

    def paths_in(self, arguments: Mapping[str, Any]) -> list[str]:
        """Which of a call's arguments are guarded as paths: the declared ones, or the customary ones."""
        if self.guards_unnamed:
            return [name for name in arguments if is_customary_path(name)]
        return [name for name in self.guarded_args if name in arguments]

    def to_json(self) -> dict[str, Any]:
        """Everything that a reader of the declaration relies on, as plain JSON: what ``digest`` covers."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema.document,
            "riskLevel": self.risk_level.value,
            "pathArgs": None if self.path_args is None else list(self.path_args),
            "replay": self.replay.value,
            "replayKey": self.replay_key,
            "capability": {
                "reads": self.capability.reads,
                "writes": self.capability.writes,
                "network": self.capability.network,
                "exec": self.capability.exec,
            },
            "timeout": self.timeout,
            "outputSchema": None if self.output is None else self.output.document,
        }

    def with_(self, **changes: Any) -> "ToolDef":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)


def _check_kinds(definition: ToolDef) -> None:
    """A definition is written by hand, and read by models, journals and people: what is no text there is said here."""
    given: dict[str, Any] = {field.name: getattr(definition, field.name) for field in fields(definition) if field.init}
    where = f"tool {given['name']!r}"
    for name in ("name", "description", "replay_key"):
        if not (isinstance(given[name], str) or (name == "replay_key" and given[name] is None)):
            raise ToolDefinitionError(f"{where}: {name} must be text, not {given[name]!r}")
        if given[name] and not is_unicode(given[name]):
            raise ToolDefinitionError(f"{where}: {name} holds a lone surrogate, which is not valid Unicode text")
    if isinstance(given["path_args"], str) or not isinstance(given["path_args"], Iterable | None):
        raise ToolDefinitionError(f"{where}: path_args must be a tuple of names, not {given['path_args']!r}")
    if not isinstance(given["capability"], Capability):
        raise ToolDefinitionError(f"{where}: capability must be a Capability, not {given['capability']!r}")


def _member(kind: Any, value: Any, where: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(kind)
        raise ToolDefinitionError(f"{where} is {value!r}; it must be one of: {words}") from None


def _check_replay(definition: ToolDef, where: str) -> None:
    if definition.replay is Replay.SAFE and not definition.replay_key:
        raise ToolDefinitionError(f"{where}: replay 'safe' needs a replay_key, such as 'builtin:read:v1'")
    if definition.replay is Replay.NEVER and definition.replay_key is not None:
        raise ToolDefinitionError(f"{where}: replay_key is given, but replay is 'never'; say replay='safe' or drop it")


def _output_schema(document: Mapping[str, Any] | None, where: str) -> Schema | None:
    return None if document is None else Schema(document, where=f"{where}: output_schema", root_object=False)


def _guarded_args(definition: ToolDef, where: str) -> tuple[str, ...]:
    properties = cast("Mapping[str, Any]", definition.parameters.get("properties", {}))
    if definition.path_args is None:
        customary = tuple(name for name in properties if is_customary_path(name))
        for name in customary:
            if isinstance(properties[name], Mapping) and properties[name].get("type") in ("array", "object"):
                raise ToolDefinitionError(
                    f"{where}: the argument {name!r} is named like a path, and paths in an {properties[name]['type']} "
                    "cannot be guarded; rename it, or say path_args=() if it holds no paths"
                )
        return customary
    for name in definition.path_args:
        if name not in properties:
            raise ToolDefinitionError(f"{where}: path_args names {name!r}, which is no property of the parameters")
        kind = properties[name].get("type") if isinstance(properties[name], Mapping) else None
        if kind != "string":
            raise ToolDefinitionError(f"{where}: the path argument {name!r} must be of type string, not {kind!r}")
    return definition.path_args


def is_customary_path(name: str) -> bool:
    """Whether an argument of this name is guarded as a path where a definition names no path arguments."""
    return name in CUSTOMARY_PATH_ARGS or name.endswith(CUSTOMARY_PATH_ENDINGS)
