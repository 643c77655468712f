"""Handrail: ``@tool``, ``ToolDef``, inline code in a cell for what must be stopped, parked approvals, the journal."""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, cast

from handrail.approval.decision import AlwaysApprove
from handrail.approval.inbox import Inbox, InboxApprover
from handrail.changes.store import ChangeStore
from handrail.executor import ToolExecutor
from handrail.function_tool import tool
from handrail.journal.sqlite import SqliteJournal
from handrail.registry import ToolRegistry
from handrail.sandbox.bodies import CellBody, Cells
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.tool import Capability, Tool, ToolDef
from handrail.workspace import Workspace
from handrail_cell.wire import Limits
from handrail_contract.adapter import Answer, Invoke

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def _invoke(made: Tool, *, workspace: str | None = None, changes: ChangeStore | None = None) -> Invoke:
    registry = ToolRegistry()
    name = registry.register(made).model_name

    def invoke(raw: str) -> Answer:
        with ToolExecutor(registry, workspace=workspace, approver=AlwaysApprove(), changes=changes) as executor:
            outcome = executor.execute_sync(name, raw)
        return Answer(outcome.text, not outcome.succeeded)

    return invoke


class HandrailAdapter:
    """See :class:`handrail_contract.adapter.Adapter`."""

    name = "handrail"
    package = "handrail"
    settings = "defaults: @tool, ToolDef; code that must be stopped runs in a cell; SqliteJournal; InboxApprover"
    parses_json = True

    def __init__(self) -> None:
        self._supervisor = Supervisor()  # one for the process, as in a host

    def typed(self, function: Callable[..., Any]) -> Invoke:
        return _invoke(tool(function))

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        return _invoke(Tool(ToolDef("probe", "Probe.", schema), function))

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        definition = ToolDef("probe", "Probe.", _NO_ARGUMENTS, capability=Capability(writes=True), timeout=timeout)

        changes = ChangeStore(os.path.join(tempfile.mkdtemp(), "private"), Workspace(directory))
        body = CellBody(
            Cells(self._supervisor),
            lambda job: InlineCode(source, "probe"),
            capability=definition.capability,
            limits=Limits(),
        )
        return _invoke(Tool(definition, body=body), workspace=directory, changes=changes)

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        registry = ToolRegistry()
        name = registry.register(tool(function)).model_name
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "private", "journal.sqlite")
            journal = SqliteJournal(path)
            with ToolExecutor(registry, approver=InboxApprover(), journal=journal) as executor:
                approval = cast("str", executor.execute_sync(name, {"target": approved}).approval_id)
                asyncio.run(Inbox(journal, by="somebody").approve(approval))
            journal.close()
            _swap_in_every_row(path, approved, swapped)
            journal = SqliteJournal(path)
            with ToolExecutor(registry, approver=InboxApprover(), journal=journal) as executor:
                asyncio.run(executor.resume(approval))
            journal.close()

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        self._charge(directory, function)

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        return self._charge(directory, function)

    def _charge(self, directory: str, function: Callable[[], str]) -> Answer:
        """The same call id both times: what the first process did with it, the second can say."""
        registry = ToolRegistry()
        name = registry.register(tool(function)).model_name
        journal = SqliteJournal(os.path.join(directory, "private", "journal.sqlite"))
        with ToolExecutor(registry, approver=AlwaysApprove(), journal=journal) as executor:
            outcome = executor.execute_sync(name, "{}", call_id="01990000-0000-7000-8000-000000000001")
        journal.close()
        return Answer(outcome.text, not outcome.succeeded)


def _swap_in_every_row(path: str, approved: str, swapped: str) -> None:
    """Edit the store behind the journal's back, wherever the approved value stands."""
    with sqlite3.connect(path) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for _, column, *_rest in connection.execute(f"PRAGMA table_info({table})").fetchall():
                connection.execute(
                    f"UPDATE {table} SET {column} = CAST(replace(CAST({column} AS TEXT), ?, ?) AS BLOB) "
                    f"WHERE typeof({column}) = 'blob' AND instr(CAST({column} AS TEXT), ?)",
                    (approved, swapped, approved),
                )
                connection.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?) "
                    f"WHERE typeof({column}) = 'text' AND instr({column}, ?)",
                    (approved, swapped, approved),
                )
    connection.close()
