"""Which parts of a call's arguments are secret, and what is kept in their place. Pure.

A value is secret when its schema says ``writeOnly: true``, or when the host named its property. Where a schema is
ambiguous (pattern and additional properties, alternatives) every branch counts: too much is hidden, never too little.
What is kept is a digest salted by the journal, which tells equal values from different ones and nothing else. It does
not hide a value with few possibilities (a PIN) from somebody who holds the journal and can try them all.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

from handrail.schema import canonical_bytes

MARK = "$secret"
_SAME_VALUE = ("allOf", "anyOf", "oneOf")
_CONDITIONAL = ("if", "then", "else", "not")
_ITEMS = ("items", "contains", "additionalItems", "unevaluatedItems")
_ANCHORS = ("$anchor", "$dynamicAnchor", "$id")
_SECRET: Mapping[str, Any] = {"writeOnly": True}
_SHORTEST_SCRUBBED = 4
_SHORTEST_LINE = 8  # of a secret of several lines: a diff or a traceback shows its lines one by one


def declares_secrets(document: Any) -> bool:
    """Whether ``writeOnly`` stands anywhere in a schema: a quick look before the careful one."""
    if isinstance(document, Mapping):
        mapping = cast("Mapping[str, Any]", document)
        return mapping.get("writeOnly") is True or any(declares_secrets(item) for item in mapping.values())
    if isinstance(document, list):
        return any(declares_secrets(item) for item in cast("list[Any]", document))
    return False


class Redactor:
    """Takes the secrets out of one call's arguments.

    ``document`` is the tool's schema, ``names`` are properties that the host calls secret at any depth, ``salt`` is the
    journal's own.
    """

    def __init__(self, document: Mapping[str, Any], names: Collection[str], salt: str) -> None:
        self._root = document
        self._names = frozenset(names)
        self._salt = salt.encode()
        self._unfollowed: list[Any] = [_SECRET] if declares_secrets(document) else []
        self.found: list[Any] = []

    def redacted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A copy with a digest in the place of each secret; ``found`` then holds the secrets."""
        return cast("dict[str, Any]", self._walked(arguments, [self._root]))

    def scrubbed(self, value: Any) -> Any:
        """A copy of JSON data in which no text of at least four characters that was found secret appears."""
        texts = {form for item in self.found if isinstance(item, str) for form in _forms(item)}
        return _scrubbed(value, sorted(texts, key=len, reverse=True)) if texts else value

    def _walked(self, value: Any, schemas: list[Any]) -> Any:
        schemas = self._unfolded(schemas)
        if any(schema.get("writeOnly") is True for schema in schemas):
            return self._hidden(value)
        if isinstance(value, Mapping):
            mapping = cast("Mapping[str, Any]", value)
            return {
                name: self._hidden(item) if name in self._names else self._walked(item, _of_name(schemas, name))
                for name, item in mapping.items()
            }
        if isinstance(value, list):
            below = [schema.get(word) for schema in schemas for word in _ITEMS]
            below += [item for schema in schemas for item in _listed(schema.get("prefixItems"))]
            below += [item for schema in schemas for item in _listed(schema.get("items"))]
            return [self._walked(item, below) for item in cast("list[Any]", value)]
        return value

    def _unfolded(self, schemas: list[Any]) -> list[Mapping[str, Any]]:
        """Every schema that speaks about the same value: through references and combinators."""
        found: list[Mapping[str, Any]] = []
        seen: set[int] = set()
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping) or id(cast("Any", schema)) in seen:
                continue
            mapping = cast("Mapping[str, Any]", schema)
            seen.add(id(mapping))
            found.append(mapping)
            waiting += [item for word in _SAME_VALUE for item in _listed(mapping.get(word))]
            waiting += [mapping.get(word) for word in _CONDITIONAL]
            for word in ("dependentSchemas", "dependencies"):
                dependent = mapping.get(word)
                waiting += list(cast("Mapping[str, Any]", dependent).values()) if isinstance(dependent, Mapping) else []
            for word in ("$ref", "$dynamicRef"):
                waiting += self._pointed(mapping[word]) if word in mapping else []
        return found

    def _pointed(self, reference: Any) -> list[Any]:
        """What a reference names; one that cannot be followed here makes its value a secret."""
        if reference in ("#", ""):
            return [self._root]
        if not isinstance(reference, str) or not reference.startswith("#"):
            return self._unfollowed
        if not reference.startswith("#/"):
            return list(_anchored(self._root, unquote(reference[1:]))) or self._unfollowed
        node: Any = self._root
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and key in node:
                node = cast("Mapping[str, Any]", node)[key]
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(cast("list[Any]", node)):
                node = cast("list[Any]", node)[int(key)]
            else:
                return self._unfollowed
        return [node]

    def _hidden(self, value: Any) -> dict[str, str]:
        self.found.extend(_leaves(value))
        return {MARK: "sha256:" + hashlib.sha256(self._salt + b"\0" + canonical_bytes(value)).hexdigest()}


def _of_name(schemas: list[Mapping[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            found.append(cast("Mapping[str, Any]", properties)[name])
        patterns = schema.get("patternProperties")
        if isinstance(patterns, Mapping):
            found += cast("Mapping[str, Any]", patterns).values()
        if not (isinstance(properties, Mapping) and name in properties):
            found += [schema.get("additionalProperties"), schema.get("unevaluatedProperties")]
    return found


def _anchored(node: Any, name: str) -> Iterator[Any]:
    """Every schema beneath ``node`` that calls itself ``name`` (draft-07: ``"$id": "#name"``)."""
    if isinstance(node, Mapping):
        mapping = cast("Mapping[str, Any]", node)
        if any(mapping.get(word) in (name, f"#{name}") for word in _ANCHORS):
            yield mapping
        for item in mapping.values():
            yield from _anchored(item, name)
    elif isinstance(node, list):
        for item in cast("list[Any]", node):
            yield from _anchored(item, name)


def _forms(secret: str) -> Iterator[str]:
    """How a secret can stand in a text: as it is, as JSON or a traceback quotes it, and line by line."""
    if len(secret) >= _SHORTEST_SCRUBBED:
        yield secret
        yield json.dumps(secret)[1:-1]
        yield json.dumps(secret, ensure_ascii=False)[1:-1]
        yield repr(secret)[1:-1]
    lines = [line.strip() for line in secret.splitlines()]
    yield from (line for line in lines if len(lines) > 1 and len(line) >= _SHORTEST_LINE)


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for item in cast("Mapping[str, Any]", value).values() for leaf in _leaves(item)]
    if isinstance(value, list):
        return [leaf for item in cast("list[Any]", value) for leaf in _leaves(item)]
    return [value]


def _scrubbed(value: Any, texts: list[str]) -> Any:
    if isinstance(value, str):
        for text in texts:
            value = value.replace(text, "[secret]")
        return value
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {_scrubbed(name, texts): _scrubbed(item, texts) for name, item in items}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(item, texts) for item in cast("list[Any]", value)]
    return value
