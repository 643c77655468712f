"""Strict JSON in, and the compiled JSON Schema of a tool. Nothing here opens a file or a socket, ever.

Rules of the decoder (RFC 8259, tightened where two readers could disagree):

1. The text is UTF-8 JSON, complete, with nothing after it; a truncated text is never completed.
2. No duplicate keys, no NaN or infinities (written, or reached by overflow), no lone surrogates.
3. At most ``MAX_DEPTH`` levels and ``MAX_BYTES`` bytes.

Rules of a tool's schema (JSON Schema 2020-12 by default, draft-07 when ``$schema`` says so):

4. The root describes an object. ``$schema`` is one of ``DIALECTS``.
5. References stay in the document; any other is refused at registration.
6. Regular expressions run in linear time; look-around and back-references are refused at registration.
7. No coercion: what was checked is what the handler gets.
8. At most ``MAX_SUBSCHEMAS`` subschemas, none that leads back to itself without going into the value, and a check of a
   shallow value takes at most ``MAX_STEPS_SHALLOW`` steps for each part of it (:mod:`handrail.schema_cost`); else it is
   refused at registration. A value whose check could take more than ``MAX_STEPS`` is invalid, unchecked.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeGuard, cast
from urllib.parse import urldefrag, urljoin

import jsonschema_rs
import rfc8785

from handrail.errors import ToolDefinitionError
from handrail.schema_cost import MAX_STEPS_SHALLOW, MAX_SUBSCHEMAS, SHALLOW, Cost
from handrail.sentences import kind_of, sentence
from handrail.subschemas import REFERENCES, Subschema, subschemas

JsonObject: TypeAlias = Mapping[str, Any]

MAX_DEPTH = 64
MAX_BYTES = 1_048_576
MAX_ERRORS = 5

DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
}
DEFAULT_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SURROGATE = re.compile("([\ud800-\udfff])")


class ArgumentsInvalid(ValueError):
    """The arguments cannot be accepted. The text is written for the model."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ArgumentsInvalid(f"the key {key!r} is given twice in one object; give it once")
            seen.add(key)
    return found


def _no_constant(word: str) -> NoReturn:
    raise ArgumentsInvalid(f"{word} is not a JSON number; use a finite number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ArgumentsInvalid("a number is too large to be represented; use a finite number")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a decoded JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether a decoded JSON value is an array."""
    return isinstance(value, list)


def decode_arguments(raw: str | bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Decode a model's arguments: JSON text or a mapping, which must be a non-null object.

    Returns a fresh ``dict`` of plain JSON values, sharing nothing with ``raw``.
    Raises :class:`ArgumentsInvalid` with a text a model can act on.
    """
    value = decode_json(raw) if isinstance(raw, (str, bytes)) else copy_json(raw)
    if not is_object(value):
        raise ArgumentsInvalid(f"the arguments must be a JSON object like {{…}}, not {kind_of(value)}")
    return value


def decode_json(raw: str | bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Decode one strict JSON text (rules 1 to 3). Raises :class:`ArgumentsInvalid`."""
    _check_size(raw, max_bytes)
    text = raw if isinstance(raw, str) else _decoded(raw)
    try:
        value, end = _DECODER.raw_decode(text) if text[:1] == "{" else (None, -1)
        if end != len(text):  # blanks around it, no object, or more than one value
            value = _DECODER.decode(text)
    except ArgumentsInvalid:
        raise
    except json.JSONDecodeError as error:
        raise ArgumentsInvalid(_explain_syntax(text, error)) from None
    except RecursionError:
        raise ArgumentsInvalid(f"the arguments nest deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # an integer of too many digits for this Python
        raise ArgumentsInvalid(f"a number is too long: {error}") from None
    if "\\" in text or not text.isascii():
        _check_texts(value)
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def json_text(value: Any) -> str:
    """A JSON value as compact text that reads back as the same: ``2.0`` stays a float, integers keep all digits."""
    return _ENCODER.encode(value)


def copy_json(value: Any, *, max_bytes: int | None = MAX_BYTES) -> Any:
    """A deep copy of a Python value that must be plain JSON (rules 2 and 3). Raises :class:`ArgumentsInvalid`.

    ``max_bytes`` bounds it as compact JSON in UTF-8; ``None`` is for what was measured before.
    """
    copied = _copied(value, 0)
    if max_bytes is not None:
        try:
            _check_size(json_text(copied), max_bytes)
        except ArgumentsInvalid:
            raise
        except ValueError as error:  # an integer of too many digits for this Python
            raise ArgumentsInvalid(f"a number is too long: {error}") from None
    return copied


def _check_size(text: str | bytes, max_bytes: int) -> None:
    if len(text) * 4 <= max_bytes:  # no character takes more
        return
    size = len(text)
    if isinstance(text, str) and size <= max_bytes:
        size = len(text.encode(errors="surrogatepass"))
    if size > max_bytes:
        raise ArgumentsInvalid(f"the arguments are larger than {max_bytes} bytes")


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ArgumentsInvalid(f"the arguments are not UTF-8 (byte {error.start})") from None


def _explain_syntax(text: str, error: json.JSONDecodeError) -> str:
    if not text.strip():
        return "the arguments are empty; give a JSON object, {} if there are none"
    where = f"line {error.lineno} column {error.colno}"
    if error.pos >= len(text.rstrip()) or "Unterminated" in error.msg:
        return f"the JSON text ends too early ({where}: {error.msg}); send the whole object again"
    return f"not valid JSON at {where}: {error.msg}"


def _levels(value: Any) -> Iterator[list[Any]]:
    """The values of a JSON document, level by level, without recursion; the keys of an object stand with its values."""
    level: list[Any] = [value]
    while level:
        yield level
        below: list[Any] = []
        for item in level:
            if is_object(item):
                below.extend(item)
                below.extend(item.values())
            elif is_array(item):
                below.extend(item)
        level = below


def _check_depth(value: Any) -> None:
    if sum(1 for _ in _levels(value)) > MAX_DEPTH + 1:
        raise ArgumentsInvalid(f"the arguments nest deeper than {MAX_DEPTH} levels")


def _check_texts(value: Any) -> None:
    for level in _levels(value):
        for item in level:
            if isinstance(item, str):
                _check_text(item)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    return _SURROGATE.search(text) is None


def _check_text(text: str) -> None:
    if not is_unicode(text):
        raise ArgumentsInvalid("a string holds a lone surrogate, which is not valid Unicode text")


def _copied(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ArgumentsInvalid(f"the arguments nest deeper than {MAX_DEPTH} levels")
    kind = cast("Any", type(value))
    if kind is str:
        _check_text(value)
        return value
    if kind is bool or kind is int or value is None:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ArgumentsInvalid("a number is NaN or infinite; use a finite number")
        return value
    if isinstance(value, Mapping):
        return _copied_mapping(cast("Mapping[Any, Any]", value), depth)
    if kind is list:
        return [_copied(item, depth + 1) for item in value]
    raise ArgumentsInvalid(f"a value of type {kind.__name__} is not JSON")


def _copied_mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    copied: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise ArgumentsInvalid(f"a key of type {type(key).__name__} is not JSON; keys are strings")
        _check_text(key)
        copied[key] = _copied(item, depth + 1)
    return copied


def canonical_bytes(value: Any) -> bytes:
    """The one RFC 8785 (JCS) byte string of a JSON value, to compare and to digest; :func:`json_text` is to be read.

    RFC 8785 leaves two things to the writer, which are written here as no other value is, so that two different calls
    stay apart: integers beyond 2**53 are all their digits and an ``n``, lone surrogates (in the names of files that are
    not UTF-8) are escapes.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.IntegerDomainError, rfc8785.CanonicalizationError, UnicodeEncodeError):
        return _exact_bytes(value)


def _exact_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return _exact_text(value)
    if isinstance(value, int) and abs(value) >= 2**53:
        return f"{value}n".encode()
    if is_object(value):
        order = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))  # RFC 8785 section 3.2.3
        return b"{" + b",".join(_exact_text(name) + b":" + _exact_bytes(value[name]) for name in order) + b"}"
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(_exact_bytes, cast("Sequence[Any]", value))) + b"]"
    return rfc8785.dumps(value)


def _exact_text(text: str) -> bytes:
    parts = enumerate(_SURROGATE.split(text))  # every second one is a lone surrogate
    written = (f"\\u{ord(part):04x}".encode() if at % 2 else rfc8785.dumps(part)[1:-1] for at, part in parts)
    return b'"' + b"".join(written) + b'"'


def digest_of(value: Any) -> str:
    """``sha256:`` and the hex digest of a value's canonical bytes."""
    return "sha256:" + hashlib.sha256(canonical_bytes(value)).hexdigest()


class Schema:
    """A tool's compiled JSON Schema. The only place that knows the validator library.

    ``document`` is a private copy; ``where`` names the tool or file in errors.
    Raises :class:`~handrail.errors.ToolDefinitionError` when the schema cannot be used safely (rules 4 to 6, and 8).
    """

    __slots__ = ("_cost", "_hidden", "_validator", "dialect", "document")

    def __init__(self, document: Mapping[str, Any], *, where: str = "schema", root_object: bool = True) -> None:
        try:
            copied = copy_json(document)
        except ArgumentsInvalid as error:
            raise ToolDefinitionError(f"{where}: the schema is not plain JSON: {error}") from None
        if not is_object(copied):
            raise ToolDefinitionError(f"{where}: a schema must be a JSON object, not {kind_of(copied)}")
        self.document = copied
        self.dialect = _dialect_of(self.document, where)
        if root_object:
            _require_object_root(self.document, where)
        found = list(itertools.islice(subschemas(self.document), MAX_SUBSCHEMAS + 1))
        self._cost = _affordable(found, where)
        _refuse_outside_references(found, where)
        for subschema in found:
            _check_subschema(subschema, where)
        self._hidden = _hidden_names(found)
        self._validator = _compiled(self.document, self.dialect, where)

    def errors(self, value: Any, *, mask: bool = False, root: str = "the arguments") -> list[str]:
        """What is wrong with ``value``, at most ``MAX_ERRORS`` sentences; empty when it is valid.

        Each names the instance path, what was expected and what came. ``mask`` hides the values themselves; those of
        ``writeOnly`` properties are always hidden. ``root`` is what a sentence calls the whole value.
        """
        try:
            if self.too_much(value):
                return [f"{root} cannot be checked: that would take too long; send less, or nest it less"]
            if self._validator.is_valid(value):
                return []
            found = itertools.islice(self._validator.iter_errors(value), MAX_ERRORS)
            return [self._sentence(error, mask, root) for error in found]
        except ValueError as error:
            return [f"the value cannot be checked: {error}"]

    def _sentence(self, error: Any, mask: bool, root: str) -> str:
        path = error.instance_path
        hidden = mask or self._hidden is None or not self._hidden.isdisjoint(path)
        return sentence(error.kind.name, error.kind, error.instance, path, hidden=hidden, root=root)

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is valid. No coercion."""
        return not self.too_much(value) and self._validator.is_valid(value)

    def too_much(self, value: Any, *, largest: int = MAX_BYTES) -> bool:
        """Whether checking ``value``, which came in at most ``largest`` bytes, could take too long (rule 8)."""
        return not (self._cost.always and largest <= MAX_BYTES) and not self._cost.allows(value)


def _dialect_of(document: Mapping[str, Any], where: str) -> str:
    named = document.get("$schema", DEFAULT_DIALECT)
    dialect = named.removesuffix("#") if isinstance(named, str) else named
    if dialect not in DIALECTS:
        known = ", ".join(sorted(DIALECTS))
        raise ToolDefinitionError(f"{where}: $schema {named!r} is not one of the known dialects ({known})")
    return dialect


def _require_object_root(document: Mapping[str, Any], where: str) -> None:
    if document.get("type") != "object":
        raise ToolDefinitionError(
            f'{where}: the root of the parameters must say "type": "object", not {document.get("type")!r}'
        )


def _affordable(found: Sequence[Subschema], where: str) -> Cost:
    """The cost of checking against these subschemas (rule 8)."""
    if len(found) > MAX_SUBSCHEMAS:
        raise ToolDefinitionError(f"{where}: the schema has more than {MAX_SUBSCHEMAS} subschemas")
    cost = Cost(found)
    if cost.circular:
        raise ToolDefinitionError(f"{where}: a reference leads back to itself without going into the value")
    if cost.steps(SHALLOW) > MAX_STEPS_SHALLOW:
        raise ToolDefinitionError(
            f"{where}: its alternatives and references multiply; checking one value could take more than "
            f"{MAX_STEPS_SHALLOW} steps for each part of it"
        )
    return cost


def _refuse_outside_references(found: Sequence[Subschema], where: str) -> None:
    """A reference may name this document, or a resource that is embedded in it (``$id``); nothing else."""
    here = {subschema.base for subschema in found}
    for subschema in found:
        for keyword in REFERENCES:
            target = subschema.node.get(keyword, "#")
            inside = isinstance(target, str) and (
                target.startswith("#") or urldefrag(urljoin(subschema.base, target)).url in here
            )
            if not inside:
                raise ToolDefinitionError(
                    f"{where}: {subschema.path}/{keyword} points outside the document ({target!r}); only local "
                    "references such as #/$defs/name are followed, and nothing was fetched"
                )


def _check_subschema(subschema: Subschema, where: str) -> None:
    """Rules 4 and 6 for one schema: a known dialect, and patterns that run in linear time."""
    if "$schema" in subschema.node:
        _dialect_of(subschema.node, f"{where}: {subschema.path}")
    named = subschema.node.get("patternProperties")
    for pattern in (subschema.node.get("pattern"), *(named if is_object(named) else ())):
        if isinstance(pattern, str):
            _require_linear(pattern, f"{where}: {subschema.path}")


def _require_linear(pattern: str, place: str) -> None:
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions())
    except (ValueError, jsonschema_rs.ValidationError):
        raise ToolDefinitionError(
            f"{place}: the pattern {pattern!r} is not a regular expression that runs in linear time; look-around and "
            "back-references are not supported"
        ) from None


def _hidden_names(found: Sequence[Subschema]) -> frozenset[str | int] | None:
    """The properties declared ``writeOnly``; ``None``, which hides every value, where one has no name of its own."""
    secret = [subschema.property for subschema in found if subschema.node.get("writeOnly") is True]
    return None if None in secret else frozenset(name for name in secret if name is not None)


def _never_retrieve(uri: str) -> NoReturn:
    raise ToolDefinitionError(f"a reference to {uri!r} leaves the document; nothing was fetched")


def _compiled(document: dict[str, Any], dialect: str, where: str) -> Any:
    try:
        jsonschema_rs.meta.validate(document)
        return DIALECTS[dialect](document, retriever=_never_retrieve, pattern_options=jsonschema_rs.RegexOptions())
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise ToolDefinitionError(f"{where}: the schema is not valid: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
