"""``handrail policy``: find mistakes in a policy file, explain a decision, try a file on past calls."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from handrail.approval.policy import RiskTable, Verdict
from handrail.approval.policy_file import default_policy_path, load_policy
from handrail.approval.render import quoted
from handrail.approval.review import Mistake, review
from handrail.approval.rules import CompiledRules, Finding, Subject, verdict_of
from handrail.call import Checked, Origin, Proposed, RegisteredTool, new_call_id
from handrail.cli.call import raw_arguments
from handrail.cli.options import (
    JsonOption,
    McpConfigOption,
    McpOption,
    PluginOption,
    SkillOption,
    WorkspaceOption,
    names,
)
from handrail.cli.show import json_line, say
from handrail.errors import ConfigurationError, PathEscape, PathUnusable
from handrail.guard import FilesystemGuard
from handrail.journal.sqlite import SqliteJournal, default_path
from handrail.registry import ToolRegistry
from handrail.schema import ArgumentsInvalid, decode_arguments
from handrail.tool import RiskLevel
from handrail.wiring import House, Settings, open_house

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Check, explain and try out policy files.")

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="The policy file.")]
OwnPolicyOption = Annotated[
    str | None, typer.Option("--policy", metavar="FILE", help="The policy file to use instead of your own.")
]


@app.command()
def check(
    file: FileArgument,
    workspace: WorkspaceOption = ".",
    plugin: PluginOption = None,
    skill: SkillOption = None,
    mcp: McpOption = None,
    mcp_config: McpConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Find mistakes, rules that never match, rules that others hide, and rules that allow too much.

    Exit status: 0 nothing found, 1 something found, 2 the file cannot be used at all.
    """
    with open_house(_settings(workspace, plugin, skill, mcp, mcp_config)) as house:
        rules = load_policy(file, workspace=house.workspace.path)
        found = review(rules, list(house.registry))
    if json_:
        mistakes = [_as_json(one) for one in found]
        say(json_line({"rules": len(rules.rules), "version": rules.version, "mistakes": mistakes}))
    else:
        for mistake in found:
            say(f"{quoted(mistake.rule, 200).text}: {_KINDS[mistake.kind]}: {mistake.text}")
        say(f"{_counted(len(rules.rules), 'rule')}, {_counted(len(found), 'mistake')}.")
    raise typer.Exit(1 if found else 0)


_KINDS = {"never": "never matches", "shadowed": "is hidden", "broad": "allows too much"}


def _as_json(mistake: Mistake) -> dict[str, str]:
    return {"kind": mistake.kind, "rule": mistake.rule, "text": mistake.text}


@app.command()
def explain(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS…]", help="A JSON object, '-' for standard input, or key=value pairs."),
    ] = None,
    policy: OwnPolicyOption = None,
    workspace: WorkspaceOption = ".",
    plugin: PluginOption = None,
    skill: SkillOption = None,
    mcp: McpOption = None,
    mcp_config: McpConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Say which rule decides about a call, why, and which others speak about it. Nothing is run."""
    with open_house(_settings(workspace, plugin, skill, mcp, mcp_config)) as house:
        checked = _checked(house, tool, args or [])
        rules = _rules(policy, house.workspace.path)
        verdict = (RiskTable() if rules is None else rules).decide(checked)
        findings = [] if rules is None else rules.findings(Subject.of(checked))
    if json_:
        say(json_line(_verdict_json(verdict, findings, checked)))
        return
    say(f"{verdict.decision}: {quoted(verdict.why, 600).text}")
    granted = ", may be granted" if verdict.can_grant else ""
    say(f"decided by {quoted(verdict.rule, 200).text}, review {verdict.review}{granted}")
    for finding in findings:
        if finding.rule.name != verdict.rule:
            say(
                f"also: {quoted(finding.rule.name, 200).text} says {finding.decision} ({quoted(finding.why, 300).text})"
            )
    for name, (requested, resolved) in Subject.of(checked).paths.items():
        leads = "" if requested == resolved else f", which leads to {quoted(resolved).text}"
        say(f"{quoted(name, 100).text} is {quoted(requested).text}{leads}")


@app.command()
def replay(
    file: FileArgument,
    workspace: WorkspaceOption = ".",
    plugin: PluginOption = None,
    json_: JsonOption = False,
) -> None:
    """Run a policy over the calls that the journal holds, and show what it would have let through. Nothing is run.

    Paths are judged as they were recorded; links of then are not followed again.
    """
    path = default_path(workspace)
    if not os.path.exists(path):
        raise ConfigurationError(f"no call was ever recorded for the workspace {os.path.realpath(workspace)!r}")
    with open_house(_settings(workspace, plugin, None, None, None)) as house, closing(SqliteJournal(path)) as journal:
        rules = load_policy(file, workspace=house.workspace.path)
        replayed = [_replayed(past, rules, house.registry) for past in _past_calls(journal)]
    if json_:
        say(json_line([one.to_json() for one in replayed]))
        return
    for one in replayed:
        say(_replayed_line(one))
    counts = Counter(one.verdict.decision for one in replayed)
    risky = sum(one.is_risky for one in replayed)
    say(
        f"{_counted(len(replayed), 'call')}: {counts['allow']} would run without asking "
        f"({risky} of them destructive or dangerous), {counts['ask']} would be asked about, {counts['deny']} denied."
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _replayed_line(one: "Replayed") -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.past.at))
    arguments = quoted(json.dumps(one.past.arguments, ensure_ascii=False, sort_keys=True), 120).text
    said = f"{one.verdict.decision:<5}{' !' if one.is_risky else ''}"
    return f"{when}  {said}  {quoted(one.past.tool, 60).text} {arguments}  ({quoted(one.verdict.rule, 80).text})"


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(
    workspace: str,
    plugin: list[str] | None,
    skill: list[str] | None,
    mcp: list[str] | None,
    mcp_config: str | None,
) -> Settings:
    return Settings(
        workspace=workspace,
        plugins=names(plugin),
        skills=tuple(skill or ()),
        mcp=names(mcp) or (),
        mcp_config=mcp_config,
        approve="never",
        journal=False,
        door="cli",
    )


def _rules(policy: str | None, workspace: str) -> CompiledRules | None:
    if policy is not None:
        return load_policy(policy, workspace=workspace)
    own = default_policy_path()
    return load_policy(own, workspace=workspace) if os.path.exists(own) else None


def _checked(house: House, tool: str, words: list[str]) -> Checked:
    """The call as policy would see it: the schema's and the guard's steps, and no further."""
    registered = house.registry.find(tool)
    if registered is None:
        raise ConfigurationError(f"there is no tool named {tool!r}; the tools are: {', '.join(house.registry.names)}")
    definition = registered.tool.definition
    try:
        arguments = decode_arguments(raw_arguments(words, definition))
        wrong = definition.schema.errors(arguments)
        if wrong:
            raise ConfigurationError(f"invalid arguments, so no rule is asked: {'; '.join(wrong)}")
        guarded = FilesystemGuard(house.workspace).check(definition, arguments)
    except (ArgumentsInvalid, PathEscape, PathUnusable) as error:
        raise ConfigurationError(f"refused before any rule is asked: {error}") from None
    proposed = Proposed(new_call_id(), registered, arguments, Origin(door="cli"))
    return Checked(proposed, guarded.arguments, house.workspace.path, guarded.requested, guarded.resolved)


def _verdict_json(verdict: Verdict, findings: list[Finding], checked: Checked) -> dict[str, Any]:
    return {
        "decision": verdict.decision,
        "rule": verdict.rule,
        "why": verdict.why,
        "review": verdict.review,
        "canGrant": verdict.can_grant,
        "arguments": dict(checked.arguments),
        "rules": [{"rule": one.rule.name, "decision": one.decision, "why": one.why} for one in findings],
    }


@dataclass(frozen=True, slots=True)
class PastCall:
    """One call of the journal."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    risk: RiskLevel
    workspace: str
    staged: bool
    at: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """A past call and what a policy says about it now."""

    past: PastCall
    verdict: Verdict

    @property
    def is_risky(self) -> bool:
        """Whether it would run something destructive or dangerous without asking."""
        return self.verdict.decision == "allow" and self.past.risk > RiskLevel.MUTATION

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "call_id": self.past.call_id,
            "tool": self.past.tool,
            "arguments": self.past.arguments,
            "risk": self.past.risk.value,
            "at": self.past.at,
            "decision": self.verdict.decision,
            "rule": self.verdict.rule,
            "why": self.verdict.why,
        }


def _past_calls(journal: SqliteJournal) -> Iterator[PastCall]:
    """The intents of the journal, oldest first."""
    for record in journal.reader.records():
        data = record.data
        if data.get("kind") == "intent":
            yield PastCall(
                data["call_id"],
                data["tool"],
                dict(data["arguments"]),
                RiskLevel(data["risk"]),
                data["workspace"],
                data["declaration"]["staged"] is True,
                float(data["at"]),
            )


def _replayed(past: PastCall, rules: CompiledRules, registry: ToolRegistry) -> Replayed:
    registered = registry.find(past.tool)
    subject = Subject(
        (past.tool, registered.model_name) if registered is not None else (past.tool,),
        past.risk,
        past.arguments,
        {name: (str(past.arguments[name]), str(past.arguments[name])) for name in _path_names(past, registered)},
        past.workspace,
        past.staged,
    )
    finding = rules.find(subject)
    if finding is None:
        return Replayed(past, RiskTable().of(past.risk, staged=past.staged))
    return Replayed(past, verdict_of(finding, subject))


def _path_names(past: PastCall, registered: RegisteredTool | None) -> list[str]:
    definition = registered.tool.definition if registered is not None else None
    guarded = definition.paths_in(past.arguments) if definition is not None else list(past.arguments)
    return [name for name in guarded if str(past.arguments.get(name, "")).startswith("/")]
