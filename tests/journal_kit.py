"""Questions and grants to put into a journal by hand."""

from handrail.parked import Grant, GrantPattern, ParkedCall


def question(call, number):
    return ParkedCall(
        approval_id=f"{call}-{number}",
        call_id=call,
        tool="t",
        arguments={},
        binding="b",
        question={},
        asked_at=1.0,
        expires_at=9.0,
    )


def grant(name):
    return Grant(
        grant_id=name,
        session="s",
        agent="",
        pattern=GrantPattern("t"),
        definition="",
        configuration="",
        workspace="",
        policy="",
        by="ann",
        at=1.0,
    )
