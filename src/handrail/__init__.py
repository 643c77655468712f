"""Handrail runs an agent's tool calls without trusting them. The house, and who lives where:

tool.py        ToolDef, Tool, Plugin, RiskLevel, Replay, Capability: declarations only; definition.py checks them,
               body.py is the door to a tool's code, host.py the kind of body that is a function of the host's
schema.py      strict JSON in, and the compiled JSON Schema of a tool; schema_cost.py bounds what a check may take
call.py        the stages of one call: Proposed, Checked, Approved, Recorded; parked.py: questions that wait
registry.py    ToolRegistry: the tools there are, under names that never meet
workspace.py   one directory, opened once; guard.py holds path arguments beneath it
executor.py    ToolExecutor: the corridor every call walks, top to bottom; walk.py: how a walk can end
changes/       what a call did to files: staged, shown, committed, undone
sandbox/       capability → walls; the keeper of the cells (handrail_cell lives inside them)
approval/      policy, approvers, grants        journal/  intent, outcome, recovery, audit
builtins/ mcp/ agent/ models/ cli/    tools, servers, the loop, and the doors
"""

import importlib
from typing import TYPE_CHECKING, Any

from handrail.approval.decision import (
    AlwaysApprove,
    ApprovalRequest,
    Approve,
    Approver,
    CallbackApprover,
    Decision,
    Escalate,
    Modify,
    NeverApprove,
    Park,
    Reject,
    Unavailable,
)
from handrail.approval.policy import Policy, RiskTable, Verdict
from handrail.call import Approved, Checked, Origin, Proposed, Recorded, RegisteredTool
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.errors import (
    ConfigurationError,
    HandrailError,
    NameCollision,
    PathEscape,
    PathUnusable,
    ToolDefinitionError,
    ToolError,
    WorkspaceError,
    WriteRefused,
)
from handrail.executor import Listeners, ToolCall, ToolExecutor
from handrail.function_tool import tool
from handrail.guard import FilesystemGuard
from handrail.outcome import ChangesReport, FullOutput, Reason, ToolOutcome
from handrail.parked import Answer, ApprovalStore, Grant, GrantPattern, GrantStore, ParkedCall
from handrail.registry import ToolRegistry
from handrail.schema import Schema
from handrail.tool import Body, Capability, Effect, Job, Plugin, Replay, RiskLevel, Signal, Tool, ToolDef
from handrail.workspace import Workspace

if TYPE_CHECKING:  # these load pydantic or the loop, so they are loaded when they are first asked for
    from handrail.agent.config import AgentConfig
    from handrail.agent.loop import Agent, RunResult
    from handrail.agent.valves import Limits, StopReason
    from handrail.inline import (
        ChangeTracker,
        InlineTool,
        InlineToolExecutor,
        InlineToolResult,
        Invocation,
        SkillContext,
        ToolSource,
    )

_LATER = {
    "Agent": "handrail.agent.loop",
    "AgentConfig": "handrail.agent.config",
    "Limits": "handrail.agent.valves",
    "RunResult": "handrail.agent.loop",
    "StopReason": "handrail.agent.valves",
    "ChangeTracker": "handrail.inline",
    "InlineTool": "handrail.inline",
    "InlineToolExecutor": "handrail.inline",
    "InlineToolResult": "handrail.inline",
    "Invocation": "handrail.inline",
    "SkillContext": "handrail.inline",
    "ToolSource": "handrail.inline",
}

__all__ = [
    "Agent",
    "AgentConfig",
    "AlwaysApprove",
    "Answer",
    "ApprovalRequest",
    "ApprovalStore",
    "Approve",
    "Approved",
    "Approver",
    "Body",
    "CallbackApprover",
    "Capability",
    "Change",
    "ChangeSet",
    "ChangeTracker",
    "ChangesReport",
    "Checked",
    "ConfigurationError",
    "Decision",
    "Effect",
    "Escalate",
    "FileState",
    "FilesystemGuard",
    "FullOutput",
    "Grant",
    "GrantPattern",
    "GrantStore",
    "HandrailError",
    "InlineTool",
    "InlineToolExecutor",
    "InlineToolResult",
    "Invocation",
    "Job",
    "Limits",
    "Listeners",
    "Modify",
    "NameCollision",
    "NeverApprove",
    "Origin",
    "Park",
    "ParkedCall",
    "PathEscape",
    "PathUnusable",
    "Plugin",
    "Policy",
    "Proposed",
    "Reason",
    "Recorded",
    "RegisteredTool",
    "Reject",
    "Replay",
    "RiskLevel",
    "RiskTable",
    "RunResult",
    "Schema",
    "Signal",
    "SkillContext",
    "StopReason",
    "Tool",
    "ToolCall",
    "ToolDef",
    "ToolDefinitionError",
    "ToolError",
    "ToolExecutor",
    "ToolOutcome",
    "ToolRegistry",
    "ToolSource",
    "Unavailable",
    "Verdict",
    "Workspace",
    "WorkspaceError",
    "WriteRefused",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'handrail' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
