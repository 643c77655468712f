"""What is to be asked about a call: the protocol of a policy, and the risk table that stands when there is no other.

``allow`` runs without asking (guards hold all the same), ``ask`` asks a person or program, ``deny`` refuses.
"""

from typing import Literal, Protocol

from msgspec import Struct

from handrail.call import Checked, Review
from handrail.tool import RiskLevel


class Verdict(Struct, frozen=True):
    """A policy's decision about one call. ``rule`` names what decided and ``why`` says it in words."""

    decision: Literal["allow", "ask", "deny"]
    review: Review
    rule: str
    why: str
    can_grant: bool = False


class Policy(Protocol):
    """Rules, as a pure function. ``version`` is a digest of them: an approval binds it."""

    @property
    def version(self) -> str: ...

    def decide(self, checked: Checked) -> Verdict: ...


class RiskTable:
    """The default policy: decided by the tool's declared risk alone.

    ========================= ======== ==================
    risk                      decision may be granted
    ========================= ======== ==================
    safe, read_only           allow    —
    mutation                  ask      for the session
    destructive, dangerous    ask      never
    ========================= ======== ==================

    Tools whose whole effect is staged are asked about with the diff (``changes``); all others ``before``.
    """

    version = "risk-table:v1"

    def decide(self, checked: Checked) -> Verdict:
        """The table's row for the tool's risk."""
        tool = checked.proposed.registered.tool
        return self.of(tool.definition.risk_level, staged=tool.body.staged)

    def of(self, risk: RiskLevel, *, staged: bool) -> Verdict:
        """The row for a risk; ``staged``: whether the tool's whole effect is staged."""
        return _TABLE[risk, staged]


def _row(risk: RiskLevel, review: Review) -> Verdict:
    if risk <= RiskLevel.READ_ONLY:
        return Verdict("allow", review, "risk-table", f"{risk.value} tools run without asking")
    can_grant = risk is RiskLevel.MUTATION
    return Verdict("ask", review, "risk-table", f"{risk.value} tools are asked about", can_grant)


_TABLE = {(risk, False): _row(risk, "before") for risk in RiskLevel} | {
    (risk, True): _row(risk, "changes") for risk in RiskLevel
}
