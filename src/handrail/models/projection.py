"""A tool's schema as a provider accepts it, and the way back for the arguments.

The authoritative schema stays ours: arguments are checked against it, whatever was shown to the model. A projection
only has to be accepted by every provider and to tell the model enough. Rules:

1. ``$schema``, ``$id`` and other keys about the document are dropped; an object says ``properties``; ``true`` and
   ``false`` as schemas become objects; draft-07's list ``items`` becomes ``prefixItems``.
2. Local references are put in place, down to ``MAX_DEPTH`` and up to ``MAX_NODES`` schema nodes; a cycle ends as "any
   value". References have no meaning to several providers.
3. ``anyOf``, ``oneOf``, ``allOf`` at the root are folded into ``properties``; ``required`` keeps what every branch
   asks for.
4. Property names outside ``[A-Za-z0-9_.-]{1,64}`` are renamed by a pure function, and :meth:`ProjectedTool.restore`
   names them back.
5. A schema for which all this does not do is shown as a plain object: one awkward tool never takes the request down.
"""

import base64
import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from handrail.models.client import ModelCall, ToolSpec
from handrail.schema import ArgumentsInvalid, decode_arguments

MAX_NODES = 2_000
MAX_DEPTH = 24
MAX_BYTES = 100_000
GOOD_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_ABOUT_THE_DOCUMENT = ("$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "$vocabulary", "$defs", "definitions")
_ONE_SCHEMA = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_MANY_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas")
_ROOT_COMBINATORS = ("allOf", "anyOf", "oneOf")
_ROOT_ONLY_DROPPED = ("not", "if", "then", "else", "dependentSchemas", "patternProperties", "propertyNames")


@dataclass(frozen=True, slots=True)
class ProjectedTool:
    """A tool as a provider is told about it. ``original`` maps renamed property names back."""

    name: str
    description: str
    parameters: dict[str, Any]
    original: Mapping[str, str] = field(default_factory=dict[str, str])

    def restore(self, arguments: str) -> str:
        """The model's arguments under the schema's own names. Text that is not an object is left for the corridor."""
        if not self.original:
            return arguments
        try:
            decoded = decode_arguments(arguments)
        except ArgumentsInvalid:
            return arguments
        return json.dumps(self._renamed_back(decoded), ensure_ascii=False)

    def _renamed_back(self, value: Any) -> Any:
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return {self.original.get(key, key): self._renamed_back(item) for key, item in items}
        if isinstance(value, list):
            return [self._renamed_back(item) for item in cast("list[Any]", value)]
        return value


def project(spec: ToolSpec) -> ProjectedTool:
    """The projection of one tool. Never raises: what cannot be projected is shown plainly (rule 5)."""
    try:
        projector = _Projector(spec.parameters)
        parameters = _folded_root(projector.node(spec.parameters, ()))
    except (_TooMuch, RecursionError):
        return ProjectedTool(spec.name, spec.description, _plain(spec.parameters))
    if len(json.dumps(parameters)) > MAX_BYTES:
        return ProjectedTool(spec.name, spec.description, _plain(spec.parameters))
    return ProjectedTool(spec.name, spec.description, parameters, {new: old for old, new in projector.renamed.items()})


class Projections:
    """Projections of a client's tools, each made once while its schema is the same object."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[ToolSpec, ProjectedTool]] = {}

    def of(self, specs: Sequence[ToolSpec]) -> list[ProjectedTool]:
        """The projections, in the order of ``specs``."""
        return [self._one(spec) for spec in specs]

    def restore(self, call: ModelCall) -> ModelCall:
        """A model's call under the tool's own property names."""
        known = self._made.get(call.name)
        if known is None or not known[1].original:
            return call
        return ModelCall(call.name, known[1].restore(call.arguments), call.provider_id, call.call_id)

    def _one(self, spec: ToolSpec) -> ProjectedTool:
        known = self._made.get(spec.name)
        if known is None or known[0] is not spec:
            known = self._made[spec.name] = (spec, project(spec))
        return known[1]


class _TooMuch(Exception):
    """The schema is larger than a model should read."""


class _Projector:
    """Copies a schema under rules 1, 2 and 4."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.renamed: dict[str, str] = {}
        self.nodes = 0

    def node(self, schema: Any, through: tuple[str, ...], depth: int = 0) -> dict[str, Any]:
        """One schema. ``through`` are the references that led here."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _TooMuch
        if not isinstance(schema, Mapping):
            return {} if schema is True else {"not": {}}
        given = cast("Mapping[str, Any]", schema)
        if depth > MAX_DEPTH:
            return {}
        reference = given.get("$ref", given.get("$dynamicRef"))
        if isinstance(reference, str):
            return self._referred(given, reference, through, depth)
        return self._copied(given, through, depth)

    def _referred(
        self, schema: Mapping[str, Any], reference: str, through: tuple[str, ...], depth: int
    ) -> dict[str, Any]:
        beside = {key: item for key, item in schema.items() if key not in ("$ref", "$dynamicRef")}
        own = self._copied(beside, through, depth)
        target = _pointed(self.document, reference)
        if reference in through or target is None:
            return {"description": "Any value of the same kind as the enclosing one.", **own}
        return {**self.node(target, (*through, reference), depth + 1), **own}

    def _copied(self, schema: Mapping[str, Any], through: tuple[str, ...], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in schema.items():
            if key in _ABOUT_THE_DOCUMENT or key in ("additionalItems", "dependencies"):
                continue
            if key == "items" and isinstance(item, list):
                made["prefixItems"] = [self.node(one, through, depth + 1) for one in cast("list[Any]", item)]
            elif key == "additionalProperties" and isinstance(item, bool):
                made[key] = item
            elif key in _ONE_SCHEMA:
                made[key] = self.node(item, through, depth + 1)
            elif key in _MANY_SCHEMAS and isinstance(item, list):
                made[key] = [self.node(one, through, depth + 1) for one in cast("list[Any]", item)]
            elif key in _NAMED_SCHEMAS and isinstance(item, Mapping):
                made[key] = self._named(key, cast("Mapping[str, Any]", item), through, depth)
            elif key == "required" and isinstance(item, list):
                made[key] = [self._key(name) for name in cast("list[Any]", item) if isinstance(name, str)]
            else:
                made[key] = copy.deepcopy(item)
        if made.get("type") == "object":
            made.setdefault("properties", {})
        return made

    def _named(
        self, kind: str, schemas: Mapping[str, Any], through: tuple[str, ...], depth: int
    ) -> dict[str, dict[str, Any]]:
        rename = kind != "patternProperties"
        return {
            self._key(name) if rename else name: self.node(item, through, depth + 1) for name, item in schemas.items()
        }

    def _key(self, name: str) -> str:
        if GOOD_KEY.fullmatch(name):
            return name
        if name not in self.renamed:
            self.renamed[name] = good_key(name)
        return self.renamed[name]


def good_key(name: str) -> str:
    """A property name that every provider accepts: what can be read of it, and a digest of the whole."""
    digest = base64.b32encode(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()).decode().lower()[:12]
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:48].strip("_") or "key"
    return f"{readable}__h{digest}"


def _pointed(document: Any, reference: str) -> Any:
    """What a local reference points at: ``#`` and a JSON pointer (RFC 6901), or ``#`` and an anchor; else ``None``."""
    if reference == "#":
        return document
    if not reference.startswith("#/"):
        return _anchored(document, reference.removeprefix("#"))
    for part in reference[2:].split("/"):
        token = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping) and token in document:
            document = cast("Mapping[str, Any]", document)[token]
        elif isinstance(document, list) and token.isdigit() and int(token) < len(cast("list[Any]", document)):
            document = cast("list[Any]", document)[int(token)]
        else:
            return None
    return document


def _anchored(document: Any, anchor: str) -> Any:
    waiting: list[Any] = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            mapping = cast("Mapping[str, Any]", item)
            if anchor in (mapping.get("$anchor"), mapping.get("$dynamicAnchor")):
                return mapping
            waiting.extend(mapping.values())
        elif isinstance(item, list):
            waiting.extend(cast("list[Any]", item))
    return None


def _folded_root(root: dict[str, Any]) -> dict[str, Any]:
    """Rule 3: a root that is one plain object."""
    folded = {key: item for key, item in root.items() if key not in (*_ROOT_COMBINATORS, *_ROOT_ONLY_DROPPED)}
    properties: dict[str, Any] = dict(folded.get("properties", {}))
    required: list[str] = list(folded.get("required", []))
    for branch in cast("list[dict[str, Any]]", root.get("allOf", [])):
        inner = _folded_root(branch)
        properties = {**inner["properties"], **properties}
        required += [name for name in inner.get("required", []) if name not in required]
    for combinator in ("anyOf", "oneOf"):
        branches = [_folded_root(branch) for branch in cast("list[dict[str, Any]]", root.get(combinator, []))]
        for branch in branches:
            properties = {**branch["properties"], **properties}
        common = [name for name in _required_by_all(branches) if name not in required]
        required += common
    folded["type"] = "object"
    folded["properties"] = properties
    if required:
        folded["required"] = required
    elif "required" in folded:
        del folded["required"]
    if folded.get("additionalProperties") is False and any(key in root for key in _ROOT_COMBINATORS):
        del folded["additionalProperties"]  # it speaks of the root's own properties, and those have just been joined
    return folded


def _required_by_all(branches: list[dict[str, Any]]) -> list[str]:
    if not branches:
        return []
    first: list[str] = branches[0].get("required", [])
    return [name for name in first if all(name in branch.get("required", []) for branch in branches)]


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The names that can be shown as they are, with nothing said about their values (rule 5)."""
    properties = schema.get("properties")
    names: list[str] = list(cast("Mapping[str, Any]", properties)) if isinstance(properties, Mapping) else []
    return {"type": "object", "properties": {name: {} for name in names[:200] if GOOD_KEY.fullmatch(name)}}
