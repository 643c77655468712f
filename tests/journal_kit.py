"""Questions and grants to put into a journal by hand."""

from handrail.parked import Grant, GrantPattern, ParkedCall


def question(call, number=1, expires_at=9.0):
    """A question about a call, with the approval id ``CALL-NUMBER``."""
    return ParkedCall(
        approval_id=f"{call}-{number}",
        call_id=call,
        tool="t",
        arguments={},
        binding="b",
        question={},
        asked_at=1.0,
        expires_at=expires_at,
    )


def grant(name, at=1.0):
    """A lasting yes with this id, bound to nothing in particular."""
    return Grant(
        grant_id=name,
        session="s",
        agent="",
        pattern=GrantPattern("t", equals={"to": "ann"}),
        definition="",
        configuration="",
        workspace="",
        policy="",
        by="ann",
        at=at,
    )
