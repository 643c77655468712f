"""RiskTable: every row, to the last word."""

from importlib import util
from types import ModuleType

import pytest

from handrail.call import Checked, Origin, Proposed, RegisteredTool
from handrail.tool import RiskLevel, Tool, ToolDef

ROWS = [
    ("safe", "allow", False, "safe tools run without asking"),
    ("read_only", "allow", False, "read_only tools run without asking"),
    ("mutation", "ask", True, "mutation tools are asked about"),
    ("destructive", "ask", False, "destructive tools are asked about"),
    ("dangerous", "ask", False, "dangerous tools are asked about"),
]


def made_anew() -> ModuleType:
    """The module as a process makes it when it starts, which is when its rows are made."""
    spec = util.find_spec("handrail.approval.policy")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_row_for_every_risk():
    assert [row[0] for row in ROWS] == [risk.value for risk in RiskLevel]


@pytest.mark.parametrize(("staged", "review"), [(False, "before"), (True, "changes")])
@pytest.mark.parametrize(("risk", "decision", "can_grant", "why"), ROWS)
def test_each_row_says_what_the_table_in_its_docstring_says(risk, decision, can_grant, why, staged, review):
    tool = Tool(ToolDef("t", risk_level=risk), lambda args: "", staged=staged)
    checked = Checked(Proposed("c", RegisteredTool(tool, "host:t", "t", "host"), {}, Origin()), {})
    policy = made_anew()
    assert policy.RiskTable().decide(checked) == policy.Verdict(decision, review, "risk-table", why, can_grant)
