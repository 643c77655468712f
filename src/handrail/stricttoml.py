"""TOML text as plain values. Whatever is wrong with a text is one error, with its place where that is known."""

import re
import tomllib
from typing import Any

_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


class NotToml(ValueError):
    """The text is no TOML that can be held. ``line`` and ``column`` count from 1; ``None`` where nobody knows them."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message if line is None else f"{message} (at line {line}, column {column})")
        self.message = message
        self.line = line
        self.column = column


def read(text: str) -> dict[str, Any]:
    """Read one document. Raises :class:`NotToml`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        if place is None:
            raise NotToml(str(error)) from None
        raise NotToml(str(error)[: place.start()], int(place[1]), int(place[2])) from None
    except ValueError as error:  # an integer of too many digits for this Python
        raise NotToml(f"a number is too long: {error}") from None
    except RecursionError:
        raise NotToml("arrays or tables nest too deep") from None
