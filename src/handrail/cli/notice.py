"""What a person is told when a command starts and an earlier process did not end well."""

import shlex

from handrail.cli.show import say
from handrail.wiring import House


def tell_interrupted(house: House) -> None:
    """One line on standard error for calls that a dead process left without an outcome, and how to settle them.

    Nothing is settled here: a command that was given for one call does not decide about another.
    """
    count = len(house.interrupted())
    if count == 0:
        return
    where = shlex.quote(house.workspace.path)
    calls, have, them = (
        ("1 earlier call was", "has", "it") if count == 1 else (f"{count} earlier calls were", "have", "them")
    )
    say(
        f"handrail: {calls} cut off and {have} no outcome yet; `handrail journal recover -w {where}` settles {them},"
        f" and with --dry-run only says what became of {them}",
        err=True,
    )
