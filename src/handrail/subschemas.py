"""Where the schemas of a JSON Schema document stand, and where its references lead. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urldefrag, urljoin

OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
OF_ONE = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"),
    *("propertyNames", "not", "if", "then", "else", "contentSchema"),
)
REFERENCES = ("$ref", "$dynamicRef")


@dataclass(frozen=True, slots=True)
class Subschema:
    """A schema within the document: where it stands, the base URI that holds there, the property it is of."""

    node: Mapping[str, Any]
    path: str
    base: str
    property: str | None


def subschemas(node: Any, path: str = "#", base: str = "", name: str | None = None) -> Iterator[Subschema]:
    """Every schema of the document, the root first. What stands in const, enum, default or examples is no schema."""
    if not isinstance(node, Mapping):
        return
    schema = cast("Mapping[str, Any]", node)
    named = schema.get("$id")
    if isinstance(named, str) and not named.startswith("#"):
        base = urldefrag(urljoin(base, named)).url
    yield Subschema(schema, path, base, name)
    for keyword in OF_NAMES:
        inner = schema.get(keyword)
        if isinstance(inner, Mapping):
            for key, item in cast("Mapping[str, Any]", inner).items():
                is_property = keyword == "properties"
                yield from subschemas(item, f"{path}/{keyword}/{key}", base, key if is_property else None)
    for keyword in OF_LISTS:
        inner = schema.get(keyword)
        if isinstance(inner, list):
            for index, item in enumerate(cast("list[Any]", inner)):
                yield from subschemas(item, f"{path}/{keyword}/{index}", base)
    for keyword in OF_ONE:
        yield from subschemas(schema.get(keyword), f"{path}/{keyword}", base)


class References:
    """Where the references of one document lead. ``found`` are its subschemas."""

    def __init__(self, found: Iterable[Subschema]) -> None:
        self._resources: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[str, list[Any]] = {}
        self._bases: dict[int, str] = {}
        for subschema in found:
            self._note(subschema)

    def _note(self, subschema: Subschema) -> None:
        node, base = subschema.node, subschema.base
        self._bases[id(node)] = base
        self._resources.setdefault(base, node)
        for keyword in ("$anchor", "$dynamicAnchor", "$id"):
            name = node.get(keyword)
            if isinstance(name, str) and (keyword != "$id" or name.startswith("#")):
                self._anchors.setdefault((base, name.removeprefix("#")), node)
        dynamic = node.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic.setdefault(dynamic, []).append(node)

    def targets(self, node: Mapping[str, Any]) -> Iterator[Any]:
        """What ``node``'s references lead to, as far as it is there; of a dynamic one, each place that it can mean."""
        base = self._bases.get(id(node), "")
        for keyword in REFERENCES:
            reference = node.get(keyword)
            if isinstance(reference, str):
                url, fragment = urldefrag(urljoin(base, reference))
                found = self._found(url, fragment)
                if found is not None:
                    self._bases.setdefault(id(found), url)
                    yield found
                if keyword == "$dynamicRef":
                    yield from (other for other in self._dynamic.get(fragment, ()) if other is not found)

    def _found(self, url: str, fragment: str) -> Any:
        resource = self._resources.get(url)
        if not fragment:
            return resource
        return _pointed(resource, fragment) if fragment.startswith("/") else self._anchors.get((url, fragment))


def _pointed(node: Any, pointer: str) -> Any:
    """What a JSON pointer, written as a URI fragment, leads to from ``node``; ``None`` where nothing is."""
    for part in unquote(pointer).split("/")[1:]:
        step = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = cast("Mapping[str, Any]", node).get(step)
        elif isinstance(node, list) and step.isdigit() and int(step) < len(cast("list[Any]", node)):
            node = cast("list[Any]", node)[int(step)]
        else:
            return None
    return node
