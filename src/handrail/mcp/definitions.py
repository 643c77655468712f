"""One raw tool definition of a server → a ToolDef of ours, or the reason why not. Pure; knows no protocol library.

The raw JSON stays the authority: it is what is pinned, compared, shown and validated against. Rules:

1. A definition is an object with a printable name (at most ``MAX_NAME`` characters) and an ``inputSchema`` whose root
   is an object; both schemas compile under the rules of :mod:`handrail.schema`. All else is refused with a reason.
2. What the server says about itself may raise a risk and never lowers one. A tool that the host says nothing about is
   ``mutation`` and ``never``.
3. Invisible characters are made visible (``\\u{200b}``) before a model or a person reads them, and flagged.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from handrail.errors import ToolDefinitionError
from handrail.hidden import is_hidden, printable
from handrail.mcp.catalog import ServerSpec
from handrail.names import model_name
from handrail.schema import ArgumentsInvalid, Schema, canonical_bytes, copy_json, digest_of
from handrail.tool import Capability, Replay, RiskLevel, ToolDef

MAX_NAME = 128
MAX_DEFINITION_BYTES = 256 * 1024
MAX_TOOLS = 1000
_UNREAD = ("_meta", "icons")  # neither shown to the model nor acted on, so no part of what is pinned
_VISIBLE_SPACE = "\n\t"
_HIDDEN = re.compile(r"[^\t\n\x20-\x7e]")
_ORDERS = re.compile(
    r"(?i)<\s*/?\s*(important|system|secret|instructions?)\s*>|ignore (all |any )?(previous|prior|other) "
    r"(instructions|tools)|do not (tell|mention|inform|reveal)|before (using|calling) (this|any other) tool",
)


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition that can be used. ``document`` is the server's own JSON; ``flags`` are warnings for people."""

    name: str
    document: Mapping[str, Any]
    digest: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Malformed:
    """A definition that cannot be used, and why. ``name`` is what can be said of its name, printable."""

    name: str
    reason: str


def read_definition(raw: Any) -> Definition | Malformed:
    """Look at one element of ``tools/list`` (rule 1)."""
    if not isinstance(raw, Mapping):
        return Malformed("(nameless)", "the definition is not a JSON object")
    given = cast("Mapping[str, Any]", raw)
    name = given.get("name")
    if not isinstance(name, str):
        return Malformed("(nameless)", "the definition has no name")
    shown = printable(name[:MAX_NAME]) or "(nameless)"
    try:
        document = _document(given)
        _check_name(name)
        _check_schemas(document)
    except (ToolDefinitionError, ArgumentsInvalid) as error:
        return Malformed(shown, str(error))
    return Definition(name, document, digest_of(document), _flags(document))


def read_definitions(raws: list[Any]) -> tuple[dict[str, Definition], list[Malformed]]:
    """All definitions of one listing, by name. Two of one name are both refused, and so is what exceeds the cap."""
    found: dict[str, Definition] = {}
    refused: dict[str, Malformed] = {}
    nameless: list[Malformed] = []
    for raw in raws[:MAX_TOOLS]:
        read = read_definition(raw)
        if isinstance(read, Malformed):
            (nameless.append(read) if read.name == "(nameless)" else refused.setdefault(read.name, read))
        elif read.name in found or read.name in refused:
            refused[read.name] = Malformed(read.name, "the server lists two tools of this name")
        else:
            found[read.name] = read
    for name in refused:
        found.pop(name, None)
    if len(raws) > MAX_TOOLS:
        nameless.append(Malformed("(the rest)", f"the server lists {len(raws)} tools; {MAX_TOOLS} were read"))
    return found, [*refused.values(), *nameless]


def tool_def(definition: Definition, spec: ServerSpec) -> ToolDef:
    """The declaration that the corridor uses: the server's schemas, the host's risk (rule 2).

    Raises :class:`~handrail.errors.ToolDefinitionError` where the catalog's override does not fit the definition.
    """
    document = definition.document
    override = spec.override_for(definition.name)
    replay = override.replay or Replay.NEVER
    key = override.replay_key or f"mcp:{spec.name}/{definition.name}:{definition.digest}"
    timeout = override.timeout if override.timeout is not None else spec.timeout
    return ToolDef(
        name=definition.name,
        description=description_of(document),
        parameters=document["inputSchema"],
        risk_level=override.risk or _risk_of(document),
        path_args=override.path_args,
        replay=replay,
        replay_key=key if replay is Replay.SAFE else None,
        capability=_capability(spec),
        timeout=timeout,
        output_schema=document.get("outputSchema"),
    )


def description_of(document: Mapping[str, Any]) -> str:
    """What the model is told, every character of it visible (rule 3)."""
    title = document.get("title")
    text = document.get("description")
    parts = [part for part in (title, text) if isinstance(part, str) and part]
    return printable("\n".join(dict.fromkeys(parts)))


def hidden_characters(value: Any) -> set[str]:
    """Every invisible character in the strings and keys of a JSON value."""
    found: set[str] = set()
    level: list[Any] = [value]
    while level:
        item = level.pop()
        if isinstance(item, Mapping):
            mapping = cast("Mapping[str, Any]", item)
            level.extend(mapping.keys())
            level.extend(mapping.values())
        elif isinstance(item, list):
            level.extend(cast("list[Any]", item))
        elif isinstance(item, str) and _HIDDEN.search(item):
            found.update(character for character in item if _is_hidden(character))
    return found


def _is_hidden(character: str) -> bool:
    """What a screen would not show; line ends and tabs are no secret in a description of several lines."""
    return character not in _VISIBLE_SPACE and is_hidden(character)


def _document(given: Mapping[str, Any]) -> dict[str, Any]:
    document = copy_json({key: value for key, value in given.items() if key not in _UNREAD})
    if len(canonical_bytes(document)) > MAX_DEFINITION_BYTES:
        raise ToolDefinitionError(f"the definition is larger than {MAX_DEFINITION_BYTES} bytes")
    for key in ("title", "description"):
        if not isinstance(document.get(key, ""), str):
            raise ToolDefinitionError(f"{key} is not a string")
    return document


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME:
        raise ToolDefinitionError(f"the name is longer than {MAX_NAME} characters")
    model_name(name, "server")


def _check_schemas(document: Mapping[str, Any]) -> None:
    given = document.get("inputSchema")
    if not isinstance(given, Mapping):
        raise ToolDefinitionError("inputSchema is missing or not an object")
    properties = cast("Mapping[str, Any]", given).get("properties", {})
    if not isinstance(properties, Mapping):
        raise ToolDefinitionError("inputSchema: properties is not an object")
    Schema(cast("Mapping[str, Any]", given), where="inputSchema")
    output = document.get("outputSchema")
    if output is None and "outputSchema" not in document:
        return
    if not isinstance(output, Mapping):
        raise ToolDefinitionError("outputSchema is not an object")
    Schema(cast("Mapping[str, Any]", output), where="outputSchema", root_object=False)


def _hints(document: Mapping[str, Any]) -> Mapping[str, Any]:
    given = document.get("annotations")
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}


def _risk_of(document: Mapping[str, Any]) -> RiskLevel:
    """``mutation``; ``destructive`` when the server itself says that it destroys (anything but an exact false)."""
    destructive = _hints(document).get("destructiveHint", False)
    return RiskLevel.MUTATION if destructive is False else RiskLevel.DESTRUCTIVE


def _capability(spec: ServerSpec) -> Capability:
    if spec.url:
        return Capability(reads=False, network=True)
    return Capability(reads=spec.workspace != "none", writes=spec.workspace == "write", network=spec.network, exec=True)


def _flags(document: Mapping[str, Any]) -> tuple[str, ...]:
    flags: list[str] = []
    hidden = sorted(hidden_characters(document))
    if hidden:
        shown = ", ".join(f"U+{ord(character):04X}" for character in hidden[:8])
        flags.append(f"hidden characters: {shown}{' …' if len(hidden) > 8 else ''}")
    if _ORDERS.search(description_of(document)):
        flags.append("the description gives the model orders")
    for name, value in _hints(document).items():
        if name.endswith("Hint") and type(value) is not bool:
            flags.append(
                f"the hint {printable(name)} is {printable(repr(value))[:40]}, not true or false; not believed"
            )
    if not isinstance(document.get("annotations", {}), Mapping):
        flags.append("annotations are not an object; not believed")
    return tuple(flags)
