"""RiskTable: every row, to the last word."""

import pytest

from handrail.approval.policy import RiskTable, Verdict
from handrail.call import Checked, Origin, Proposed, RegisteredTool
from handrail.tool import RiskLevel, Tool, ToolDef

ROWS = [
    ("safe", "allow", False, "safe tools run without asking"),
    ("read_only", "allow", False, "read_only tools run without asking"),
    ("mutation", "ask", True, "mutation tools are asked about"),
    ("destructive", "ask", False, "destructive tools are asked about"),
    ("dangerous", "ask", False, "dangerous tools are asked about"),
]


def test_there_is_a_row_for_every_risk():
    assert [row[0] for row in ROWS] == [risk.value for risk in RiskLevel]


@pytest.mark.parametrize(("staged", "review"), [(False, "before"), (True, "changes")])
@pytest.mark.parametrize(("risk", "decision", "can_grant", "why"), ROWS)
def test_each_row_says_what_the_table_in_its_docstring_says(risk, decision, can_grant, why, staged, review):
    tool = Tool(ToolDef("t", risk_level=risk), lambda args: "", staged=staged)
    checked = Checked(Proposed("c", RegisteredTool(tool, "host:t", "t", "host"), {}, Origin()), {})
    assert RiskTable().decide(checked) == Verdict(decision, review, "risk-table", why, can_grant)
