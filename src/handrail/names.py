"""Names that every model provider accepts, made from canonical ones by a pure function and never parsed back.

The safe intersection of the providers' rules is ``^[A-Za-z_][A-Za-z0-9_-]{0,62}$``. A canonical name that fits is
used as it is; any other becomes a readable prefix and a digest of the whole, so that two different names never
meet by being shortened. The registry refuses both where two still would.
"""

import base64
import hashlib
import re
import unicodedata

from handrail.errors import ToolDefinitionError

MODEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_READABLE_PART = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_MAX = 63
_DIGEST_CHARS = 12


def model_name(name: str, alias: str = "") -> str:
    """The model-facing name of a tool called ``name``, offered by ``alias`` (an MCP server; empty: our own).

    Raises :class:`~handrail.errors.ToolDefinitionError` for a name that is empty or holds control, format or
    surrogate characters: such a name could not be shown to a person safely either.
    """
    for part in (name, *([alias] if alias else [])):
        _require_printable(part)
    if not alias:
        return name if MODEL_NAME.fullmatch(name) and not _looks_encoded(name) else _encoded(name, alias)
    readable = f"{alias}__{name}"
    fits = _READABLE_PART.fullmatch(alias) and _READABLE_PART.fullmatch(name) and MODEL_NAME.fullmatch(readable)
    return readable if fits and not _looks_encoded(readable) else _encoded(name, alias)


def _require_printable(part: str) -> None:
    if not part.strip():
        raise ToolDefinitionError("a tool needs a name")
    for character in part:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            raise ToolDefinitionError(f"the tool name {part!r} holds the invisible character U+{ord(character):04X}")


def _looks_encoded(name: str) -> bool:
    return re.search(rf"__h[a-z2-7]{{{_DIGEST_CHARS}}}$", name) is not None


def _encoded(name: str, alias: str) -> str:
    digest = hashlib.sha256(f"{alias}\0{name}".encode()).digest()
    suffix = "__h" + base64.b32encode(digest).decode().lower()[:_DIGEST_CHARS]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{alias}__{name}" if alias else name)
    if not re.match(r"[A-Za-z_]", readable):
        readable = "_" + readable
    return readable[: _MAX - len(suffix)] + suffix
