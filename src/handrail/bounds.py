"""Numbers that a host sets: checked where they are given, by these two functions alone.

What is refused here would otherwise fail at the first call, or not fail and mean something else: ``True`` is no number,
not-a-number is smaller than nothing, and what is larger than any machine overflows where the kernel is told of it.
"""

import math
from collections.abc import Callable

from handrail.errors import ConfigurationError

MOST_SECONDS = 10**9
"""Thirty years: every clock and timer takes that, and nobody waits longer."""
MOST = 2**50
"""Of bytes, tokens, tries: more than there is of any, and far from where arithmetic on 64 bits ends."""

Refusal = Callable[[str], Exception]


def require_seconds(
    name: str, given: object, *, zero: bool = False, unit: str = "seconds", refusal: Refusal = ConfigurationError
) -> None:
    """``given`` is a time that passes: a number of seconds above 0 (``zero``: or 0), at most :data:`MOST_SECONDS`.

    ``unit`` names another unit than seconds. Raises what ``refusal`` makes of the sentence that says so.
    """
    number = given if isinstance(given, (int, float)) and not isinstance(given, bool) else math.nan
    if not 0 <= number <= MOST_SECONDS or (number == 0 and not zero):
        kind = f"a number of {unit} from 0 on" if zero else f"a positive number of {unit}"
        raise refusal(f"{name} must be {kind}, at most {MOST_SECONDS}, not {_shown(given)}")


def require_whole(
    name: str, given: object, *, least: int = 1, most: int = MOST, refusal: Refusal = ConfigurationError
) -> None:
    """``given`` is a whole number from ``least`` to ``most``. Raises what ``refusal`` makes of the sentence."""
    if type(given) is not int or not least <= given <= most:
        raise refusal(f"{name} must be a whole number from {least} to {most}, not {_shown(given)}")


def _shown(given: object) -> str:
    if isinstance(given, int) and given.bit_length() > 256:  # Python refuses to write out the longest
        return f"a number of {math.ceil(given.bit_length() / math.log2(10))} digits"
    return repr(given)[:80]
