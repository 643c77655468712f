"""Skill files: what is accepted, what is refused and where, and that their tools run in the corridor."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from handrail import AlwaysApprove, NeverApprove, Reason, RiskLevel, ToolDefinitionError, ToolExecutor, ToolRegistry
from handrail.cli.main import app
from handrail.errors import SkillError
from handrail.sandbox.bodies import Cells
from handrail.sandbox.supervisor import Supervisor
from handrail.skills import CEILING, Skill, check_skill, described, load_skill

GOOD = """\
name: text-tools
description: Counts words.
instructions: |
  Use `count` before you guess.
preload: [json]
tools:
  - name: count
    description: Count the words of a file.
    parameters: {type: object, properties: {path: {type: string}}, required: [path]}
    risk: read_only
    path_args: [path]
    limits: {wall_s: 5, memory_bytes: 256MiB}
    code: |
      words = open(input_data["path"]).read().split()
      result = {"words": len(words)}
"""


def written(tmp_path: Path, text: str, name: str = "skill.yaml") -> Path:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(text)
    return file


def test_a_good_file_is_read_whole(tmp_path: Path) -> None:
    skill = load_skill(written(tmp_path, GOOD))
    assert (skill.name, skill.description, skill.preload) == ("text-tools", "Counts words.", ("json",))
    assert skill.instructions == "Use `count` before you guess.\n"
    (tool,) = skill.tools
    assert tool.definition.name == "count"
    assert tool.definition.risk_level is RiskLevel.READ_ONLY
    assert tool.definition.guarded_args == ("path",)
    assert tool.definition.timeout == 5
    assert (tool.limits.wall_s, tool.limits.memory_bytes) == (5.0, 256 << 20)
    assert tool.code_line == 14
    assert list(described({"text-tools": skill})) == ["text-tools: Counts words."]


def test_a_skill_md_has_its_instructions_after_the_front_matter(tmp_path: Path) -> None:
    front = GOOD.replace("instructions: |\n  Use `count` before you guess.\n", "license: MIT\nmetadata: {author: me}\n")
    file = written(tmp_path, f"---\n{front}---\n\n# How\n\nCount --- always.\n", "text-tools/SKILL.md")
    for where in (file, file.parent):
        skill = load_skill(where)
        assert skill.instructions == "# How\n\nCount --- always."
        assert skill.tools[0].definition.name == "count"


def test_a_skill_without_tools_is_a_skill(tmp_path: Path) -> None:
    assert load_skill(written(tmp_path, "name: plain\ndescription: Says how.\n")).tools == ()


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


WRONG: dict[str, tuple[str, int, int, str]] = {
    "unknown key": (changed("preload:", "preloads:"), 5, 1, "unknown key 'preloads'"),
    "unknown key of a tool": (changed("    risk:", "    color: red\n    risk:"), 10, 5, "unknown key 'color'"),
    "unknown limit": (changed("{wall_s: 5,", "{walls: 5,"), 12, 14, "unknown key 'walls'"),
    "key twice": (changed("preload: [json]", "name: again"), 5, 1, "given before, on line 1"),
    "alias": (changed("preload: [json]", "preload: *x"), 5, 10, "alias *x"),
    "anchor": (changed("preload: [json]", "preload: &x [json]"), 5, 10, "anchor &x"),
    "tag": (changed("preload: [json]", "preload: !!python/name:os.system"), 5, 10, "tag"),
    "merge": (changed("preload: [json]", "<<: {a: b}"), 5, 1, "merge keys"),
    "name": (changed("name: text-tools", "name: Text Tools"), 1, 7, "must be of a-z"),
    "no description": (changed("description: Counts words.\n", ""), 1, 1, "needs 'description'"),
    "no code": (GOOD[: GOOD.index("    code:")], 7, 5, "needs 'code'"),
    "empty code": (GOOD[: GOOD.index("    code:")] + "    code: ''\n", 13, 11, "code must be Python"),
    "folded code": (changed("code: |", "code: >"), 13, 11, "folded block"),
    "syntax": (changed("result = {", "result = = {"), 15, 16, "not valid Python"),
    "tool name": (changed("name: count", "name: count words"), 7, 11, "must be letters"),
    "risk": (changed("risk: read_only", "risk: none"), 10, 11, "risk must be one of"),
    "risk too low": (
        changed("risk: read_only", "risk: safe\n    capability: {writes: true}"),
        10,
        11,
        "at least of risk",
    ),
    "capability": (changed("risk: read_only", "capability: {reads: 1}"), 10, 25, "must be true or false"),
    "unknown capability": (changed("risk: read_only", "capability: {root: true}"), 10, 18, "unknown key 'root'"),
    "parameters": (changed("{type: object,", "{type: array,"), 9, 17, '"type": "object"'),
    "remote reference": (
        changed("{path: {type: string}}", '{path: {$ref: "http://x/y"}}'),
        9,
        17,
        "outside the document",
    ),
    "path argument": (changed("path_args: [path]", "path_args: [file]"), 11, 16, "no property of the parameters"),
    "limit too high": (changed("wall_s: 5", "wall_s: 100000"), 12, 22, "may ask for 600.0 at most"),
    "limit no number": (changed("256MiB", "lots"), 12, 39, "a whole number"),
    "limit of thousands of digits": (changed("256MiB", f"'{'9' * 5000}'"), 12, 39, "a whole number"),
    "half a character": (changed("Counts words.", '"\\ud83d"'), 2, 14, "half of a surrogate pair"),
    "another line end": (changed("words = open", "words =\ropen"), 14, 14, "U+000D is not allowed"),
    "limit of nothing": (changed("wall_s: 5", "wall_s: 0"), 12, 22, "more than 0"),
    "preload": (changed("[json]", "['json; import os']"), 5, 11, "not the name of a module"),
    "replay": (changed("    risk:", "    replay: safe\n    risk:"), 10, 13, "needs a replay_key"),
    "not a mapping": ("- a\n", 1, 1, "must be a mapping"),
    "not text": ("name: 1\ndescription: x\n", 1, 7, "must be text"),
    "long": (f"name: a\ndescription: {'x' * 1025}\n", 2, 14, "longer than 1024"),
}


@pytest.mark.parametrize("name", ["skill.yaml", "SKILL.md"])
def test_a_skill_that_is_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    (error,) = check_skill(tmp_path / name)
    assert error.message == "is not a regular file"


@pytest.mark.promise("skill:check:every-error-with-its-place")
@pytest.mark.promise("skill:file:no-yaml-tricks")
@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_refused_at_its_place(case: str, tmp_path: Path) -> None:
    text, line, column, words = WRONG[case]
    file = written(tmp_path, text)
    problems = check_skill(file)
    assert [(one.line, one.column) for one in problems if words in one.message] == [(line, column)], problems
    with pytest.raises(SkillError) as caught:
        load_skill(file)
    assert str(caught.value).startswith(f"{file}:{problems[0].line}:{problems[0].column}: ")


def test_every_error_is_listed_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        changed("name: text-tools", "name: X")
        .replace("risk: read_only", "risk: none")
        .replace("wall_s: 5", "wall_s: -1")
    )
    text += "  - name: count\n    code: |\n      def (\n"
    assert [problem.line for problem in check_skill(written(tmp_path, text))] == [1, 10, 12, 16, 18]


def test_a_skill_md_must_be_named_for_its_directory(tmp_path: Path) -> None:
    (problem,) = check_skill(written(tmp_path, "---\nname: a\ndescription: b\n---\n", "other/SKILL.md"))
    assert (problem.line, problem.column) == (2, 7)
    (unopened,) = check_skill(written(tmp_path, "name: a\n", "a/SKILL.md"))
    assert "starts with a line '---'" in unopened.message
    (unclosed,) = check_skill(written(tmp_path, "---\nname: a\n", "b/SKILL.md"))
    assert "no closing line" in unclosed.message


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"name: \xe4"])
def test_a_file_that_is_no_text_is_refused(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "skill.yaml"
    file.write_bytes(raw)
    assert "not UTF-8" in check_skill(file)[0].message
    assert "cannot be read" in check_skill(tmp_path / "missing.yaml")[0].message


@pytest.mark.promise("skill:trust:cannot-loosen")
@pytest.mark.parametrize("need", ["writes", "exec", "network"])
@pytest.mark.parametrize("risk", ["safe", "read_only"])
def test_what_can_touch_something_is_at_least_a_mutation(need: str, risk: str, tmp_path: Path) -> None:
    text = changed("risk: read_only", f"risk: {risk}\n    capability: {{{need}: true}}")
    assert [problem.message for problem in check_skill(written(tmp_path, text))] == [
        f"a tool with the capability {need!r} is at least of risk 'mutation'"
    ]
    assert check_skill(written(tmp_path, text.replace(f"risk: {risk}", "risk: mutation"))) == []


@pytest.mark.parametrize("limit", CEILING.__slots__)
def test_no_limit_passes_its_ceiling(limit: str, tmp_path: Path) -> None:
    most = getattr(CEILING, limit)
    at_most = changed("{wall_s: 5, memory_bytes: 256MiB}", f"{{{limit}: {most}}}")
    assert check_skill(written(tmp_path, at_most)) == []
    assert len(check_skill(written(tmp_path, at_most.replace(str(most), str(most + 1))))) == 1


def test_tools_are_registered_under_the_skills_name_all_or_none(tmp_path: Path) -> None:
    second = "  - name: other\n    code: 'result = 1'\n"
    skill = load_skill(written(tmp_path, GOOD + second))
    registry = ToolRegistry()
    with Supervisor() as supervisor:
        registered = skill.register(registry, Cells(supervisor))
        assert [one.canonical_id for one in registered] == ["skill:text-tools/count", "skill:text-tools/other"]
        assert registry.names == ["text-tools__count", "text-tools__other"]
        registry.remove("skill:text-tools/count")
        with pytest.raises(ToolDefinitionError):
            skill.register(registry, Cells(supervisor))
    assert registry.names == ["text-tools__other"]


def test_the_codes_digest_is_part_of_what_an_approval_binds(tmp_path: Path) -> None:
    digests: list[str] = []
    with Supervisor() as supervisor:
        for text in (GOOD, changed("len(words)", "len(words) + 1"), changed("256MiB", "128MiB"), GOOD):
            registry = ToolRegistry()
            (registered,) = load_skill(written(tmp_path, text)).register(registry, Cells(supervisor))
            digests.append(registered.configuration_digest)
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


@pytest.mark.walls
def test_a_skills_tool_runs_through_the_corridor(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "text").write_text("one two three")
    skill = load_skill(written(tmp_path, GOOD))
    with Supervisor() as supervisor:
        found = called(skill, supervisor, workspace, {"path": "text"})
        assert found.value == {"words": 3}
        assert found.tool == "skill:text-tools/count"
        assert called(skill, supervisor, workspace, {"path": "../text"}).reason is Reason.PATH_REFUSED
        assert called(skill, supervisor, workspace, {"path": 1}).reason is Reason.INVALID_ARGUMENTS
        missing = called(skill, supervisor, workspace, {"path": "none"})
        assert missing.reason is Reason.TOOL_ERROR
        assert 'File "text-tools/count", line 1, in <module>' in missing.text


@pytest.mark.walls
def test_a_skills_tool_gets_the_very_values_that_were_checked(tmp_path: Path) -> None:
    echo = (
        "name: text-tools\ndescription: Repeats.\ntools:\n  - name: count\n    description: Says what it got.\n"
        "    parameters: {type: object}\n    risk: read_only\n    code: result = repr(input_data)\n"
    )
    given = {"z": 2**60, "a": [2.0, 1e17, -(10**30), True, None, "é"]}
    with Supervisor() as supervisor:
        assert called(load_skill(written(tmp_path, echo)), supervisor, tmp_path, given).value == repr(given)


def called(skill: Skill, supervisor: Supervisor, workspace: Path, arguments: dict[str, Any]) -> Any:
    registry = ToolRegistry()
    skill.register(registry, Cells(supervisor))
    with ToolExecutor(registry, workspace=workspace, approver=NeverApprove()) as executor:
        return asyncio.run(executor.execute("text-tools__count", arguments))


@pytest.mark.walls
def test_numpy_and_pandas_work_from_a_warm_parent_of_their_own(tmp_path: Path) -> None:
    text = (
        "name: numbers\ndescription: x\npreload: [numpy, pandas]\n"
        "tools:\n  - name: work\n    risk: read_only\n    code: |\n"
        "      import sys\n      warm = 'pandas' in sys.modules\n      import numpy, pandas\n"
        "      matrix = numpy.arange(6).reshape(2, 3)\n"
        "      frame = pandas.DataFrame({'a': [1, 2, 3], 'b': ['x', 'y', 'x']})\n"
        "      result = {'warm': warm, 'sum': int(matrix.sum()), 'groups': frame.groupby('b').a.sum().to_dict(),\n"
        "        'random': float(numpy.random.random()), 'solved': float(numpy.linalg.det(numpy.eye(3)))}\n"
    )
    skill = load_skill(written(tmp_path, text))
    registry = ToolRegistry()
    with Supervisor() as supervisor:
        skill.register(registry, Cells(supervisor))
        with ToolExecutor(registry, workspace=tmp_path, approver=AlwaysApprove()) as executor:
            first, second = (asyncio.run(executor.execute("numbers__work", {})) for _ in range(2))
    assert first.succeeded, first.text
    assert second.succeeded, second.text
    assert {**first.value, "random": 0} == {
        "warm": True,
        "sum": 15,
        "groups": {"x": 4, "y": 2},
        "random": 0,
        "solved": 1.0,
    }
    assert first.value["random"] != second.value["random"]


def test_handrail_skill_check_lists_what_is_wrong(tmp_path: Path) -> None:
    run = CliRunner().invoke
    good = run(app, ["skill", "check", str(written(tmp_path, GOOD))])
    assert (good.exit_code, good.stdout) == (0, "text-tools: count\n")
    bad = written(tmp_path, changed("risk: read_only", "risk: none").replace("preload:", "preloads:"))
    shown = run(app, ["skill", "check", str(bad)])
    assert shown.exit_code == 2
    assert [line.split(": ")[0] for line in shown.stderr.splitlines()] == [f"{bad}:5:1", f"{bad}:10:11"]
    data = json.loads(run(app, ["skill", "check", str(bad), "--json"]).stdout)
    assert data["ok"] is False
    assert [(one["line"], one["column"]) for one in data["errors"]] == [(5, 1), (10, 11)]
