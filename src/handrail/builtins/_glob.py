"""Glob patterns over paths, as linear-time regular expressions.

``*`` and ``?`` stay within one name, ``**`` crosses directories, ``[a-z]`` and ``[!a-z]`` are sets, ``{a,b}`` either.
A pattern without ``/`` is compared with the last name, any other with the whole path.
"""

import re

from handrail.builtins._linear import LinearPattern, PatternError
from handrail.errors import ToolError


class Glob:
    """One compiled pattern. Raises :class:`~handrail.errors.ToolError` when it is not a pattern."""

    __slots__ = ("_regex", "_whole_path")

    def __init__(self, pattern: str) -> None:
        trimmed = pattern.removeprefix("./").rstrip("/")
        self._whole_path = "/" in trimmed
        try:
            self._regex = LinearPattern(_translated(trimmed))
        except PatternError:
            raise ToolError(f"{pattern!r} is not a glob pattern such as '*.py' or 'src/**/*.py'.") from None

    def matches(self, path: str) -> bool:
        """Whether ``path`` (relative, ``/`` between names) matches."""
        return self._regex.is_all_of((path if self._whole_path else path.rpartition("/")[2]).encode())


def _translated(pattern: str) -> str:
    out: list[str] = ["(?s)"]
    place, braces = 0, 0
    while place < len(pattern):
        rest = pattern[place:]
        taken, regex = 1, re.escape(pattern[place])
        if rest.startswith("**/"):
            taken, regex = 3, "(?:.*/)?"
        elif rest.startswith("**"):
            taken, regex = 2, ".*"
        elif rest[0] in "*?":
            regex = "[^/]*" if rest[0] == "*" else "[^/]"
        elif found := re.match(r"\[(!?)(\]?[^\]]*)\]", rest):
            taken = found.end()
            inner = re.sub(r"([\\\[\]^&~|])", r"\\\1", found[2])
            regex = f"[{'^/' if found[1] else ''}{inner}]"
        elif rest[0] == "{" and "}" in rest:
            braces, regex = braces + 1, "(?:"
        elif rest[0] == "}" and braces:
            braces, regex = braces - 1, ")"
        elif rest[0] == "," and braces:
            regex = "|"
        out.append(regex)
        place += taken
    return "".join(out)
