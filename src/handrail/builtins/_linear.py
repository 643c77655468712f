"""Regular expressions that run in linear time, whatever the pattern: RE2, behind one small class."""

# The library ships no types; this is the only file that meets it.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from typing import Any

import re2


class PatternError(ValueError):
    """RE2 does not take the pattern; the text says why."""


class LinearPattern:
    """A compiled pattern over UTF-8 bytes. With ``within_lines`` no match crosses a line's end.

    Raises :class:`PatternError`.
    """

    __slots__ = ("_regex",)

    def __init__(self, pattern: str, *, ignore_case: bool = False, within_lines: bool = False) -> None:
        options: Any = re2.Options()
        options.log_errors = False
        options.case_sensitive = not ignore_case
        options.never_nl = within_lines
        options.encoding = re2.Options.Encoding.UTF8
        try:
            self._regex: Any = re2.compile(pattern.encode(), options)
        except re2.error as error:
            raise PatternError(_text_of(error)) from None

    def first(self, raw: bytes, start: int = 0) -> int | None:
        """Where the first match at or after ``start`` begins; ``None`` when there is none."""
        found = self._regex.search(raw, start)
        return None if found is None else int(found.start())

    def is_all_of(self, raw: bytes) -> bool:
        """Whether the pattern matches the whole of ``raw``."""
        return self._regex.fullmatch(raw) is not None


def _text_of(error: Any) -> str:
    said: Any = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
