"""Characters that a screen would not show as themselves, and how they are shown instead.

Hidden is what draws nothing, moves something, or looks like a plain space: controls (C0, C1, DEL), bidi marks,
invisible and unassigned characters, surrogates, private use, odd spaces and line separators.
"""

import unicodedata

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_INVISIBLE = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # letters that draw nothing


def is_hidden(character: str) -> bool:
    """Whether this character would draw nothing, move something, or look like a plain space."""
    if " " <= character <= "~":
        return False
    if character in _INVISIBLE or 0xFE00 <= ord(character) <= 0xFE0F or 0xE0100 <= ord(character) <= 0xE01EF:
        return True
    return unicodedata.category(character) in _HIDDEN_CATEGORIES


def escape(character: str) -> str:
    """One character by its number: ``\\x1b``, ``\\u202e``, ``\\U000e0001``."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text: str) -> str:
    """``text`` of several lines: line ends and tabs stay, what else is hidden becomes ``\\u{…}``."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        character if character in "\n\t" or not is_hidden(character) else f"\\u{{{ord(character):x}}}"
        for character in text
    )
