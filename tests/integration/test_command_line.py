"""The command line as a person or a program meets it: real processes, real files, a private state directory."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "secret").write_text("outside")
    return workspace


def environment_of(place: Path) -> dict[str, str]:
    state = str(place.parent / "state")
    return {**os.environ, "XDG_STATE_HOME": state, "XDG_CONFIG_HOME": state, "NO_COLOR": "1", "COLUMNS": "80"}


def handrail(place: Path, *words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handrail", *words],
        capture_output=True, text=True, cwd=place, env=environment_of(place), input=given, timeout=120, check=False,
    )  # fmt: skip


def in_a_shell(place: Path, line: str) -> subprocess.CompletedProcess[str]:
    """``line`` as a shell runs it, with ``$HANDRAIL`` for the program."""
    environment = {**environment_of(place), "HANDRAIL": f"{sys.executable} -m handrail"}
    command = ["/bin/sh", "-c", line]
    return subprocess.run(command, capture_output=True, text=True, cwd=place, env=environment, timeout=120, check=False)


def outcome(place: Path, *words: str, given: str | None = None) -> dict[str, Any]:
    return json.loads(handrail(place, "call", *words, "--json", given=given).stdout)


def test_pairs_json_and_standard_input_are_one_call_in_three_clothes(place: Path) -> None:
    pairs = outcome(place, "read", "path=notes.txt", "limit=1")
    text = outcome(place, "read", '{"path": "notes.txt", "limit": 1}')
    piped = outcome(place, "read", "-", given='{"path": "notes.txt", "limit": 1}')
    assert pairs["status"] == "ok"
    assert pairs["text"] == text["text"] == piped["text"]
    assert "one" in pairs["text"]
    assert "two" not in pairs["text"]


def test_text_goes_to_standard_output_and_the_rest_to_standard_error(place: Path) -> None:
    shown = handrail(place, "call", "read", "path=notes.txt")
    assert (shown.returncode, shown.stdout) == (0, "one\ntwo\nthree\n")
    assert "ok" in shown.stderr


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("read", "path=../secret"), 1, "path_refused"),
        (("read", "path=notes.txt", "limit=x"), 1, "invalid_arguments"),
        (("read", "path=notes.txt", "limit=" + "[" * 100_000), 1, "invalid_arguments"),
        (("raed", "path=notes.txt"), 1, "unknown_tool"),
        (("write", "path=a", "content=b", "--approve", "never"), 1, "changes_rejected"),
    ],
)
def test_what_is_refused_says_why_and_exits_with_1(
    place: Path, words: tuple[str, ...], status: int, reason: str
) -> None:
    shown = handrail(place, "call", *words, "--json")
    assert shown.returncode == status
    assert json.loads(shown.stdout)["reason"] == reason
    assert sorted(path.name for path in place.iterdir()) == ["notes.txt"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("call", "read", "path=notes.txt", "--plugin", "nope"), "there is no such tool or plugin"),
        (("call", "read", "path=notes.txt", "--workspace", "nowhere"), "cannot be opened"),
        (("call", "read", "notes.txt"), "neither a JSON object nor a key=value pair"),
        (("call", "read", "path=a", "path=b"), "given twice"),
        (("call", "edit", "path=a", 'edits=[{"old_text": "a", "old_text": "b"}]'), "edits: the key 'old_text'"),
        (("call", "read", "path=notes.txt", "--approve", "perhaps"), "not one of"),
        (("fly",), "No such command"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(place: Path, words: tuple[str, ...], says: str) -> None:
    shown = handrail(place, *words)
    assert shown.returncode in (1, 2)
    assert shown.returncode == 2 or "workspace" in shown.stderr
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr


def test_an_edit_shows_its_diff_and_is_real_afterwards(place: Path) -> None:
    edits = json.dumps({"path": "notes.txt", "edits": [{"old_text": "two", "new_text": "2"}]})
    shown = handrail(place, "call", "edit", edits, "--approve", "always")
    assert shown.returncode == 0
    assert "-two\n+2\n" in shown.stderr
    assert (place / "notes.txt").read_text() == "one\n2\nthree\n"


def test_the_allowlist_is_one(place: Path) -> None:
    listed = json.loads(handrail(place, "tools", "--plugin", "read,grep", "--json").stdout)
    assert [tool["id"] for tool in listed] == ["builtin:grep", "builtin:read"]
    assert handrail(place, "call", "write", "path=a", "content=b", "--plugin", "read").returncode == 1
    assert not (place / "a").exists()


def test_every_tool_tells_risk_schema_paths_and_replay(place: Path) -> None:
    for tool in json.loads(handrail(place, "tools", "--json").stdout):
        assert tool["riskLevel"] in ("safe", "read_only", "mutation", "destructive", "dangerous")
        assert tool["parameters"]["type"] == "object"
        assert tool["replay"] in ("safe", "never")
        assert (tool["replay"] == "safe") == (tool["replayKey"] is not None)


@pytest.mark.parametrize("words", [("call", "read", "-"), ("run", "-"), ("approvals", "edit", "x", "-")])
def test_standard_input_that_is_not_text_is_one_clear_line(place: Path, words: tuple[str, ...]) -> None:
    state = str(place.parent / "state")
    environment = {**os.environ, "XDG_STATE_HOME": state, "XDG_CONFIG_HOME": state, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-m", "handrail", *words]
    done = subprocess.run(command, cwd=place, input=b"\xff", capture_output=True, env=environment, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr == b"handrail: standard input is not utf-8 text, from byte 0 on\n"


@pytest.mark.parametrize("words", ["call read path=notes.txt", "call read path=notes.txt --json", "tools", "--version"])
def test_an_output_that_nobody_can_keep_is_one_clear_line_and_a_failure(place: Path, words: str) -> None:
    done = in_a_shell(place, f"$HANDRAIL {words} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "handrail: No space left on device\n")


@pytest.mark.parametrize("words", ["call read -", "run", "run -"])
def test_a_standard_input_that_was_closed_is_one_clear_line(place: Path, words: str) -> None:
    done = in_a_shell(place, f"$HANDRAIL {words} <&-")
    assert (done.returncode, done.stderr) == (2, "handrail: there is no standard input to read\n")


def test_a_closed_output_is_no_terminal_and_no_fault(place: Path) -> None:
    assert "Traceback" not in in_a_shell(place, "$HANDRAIL doctor >&-").stderr


def test_a_state_directory_that_cannot_be_made_is_one_clear_line(place: Path) -> None:
    done = in_a_shell(place, "XDG_STATE_HOME=/proc/nowhere $HANDRAIL tools")
    assert (done.returncode, done.stderr) == (1, "handrail: No such file or directory: '/proc/nowhere'\n")


def test_a_current_directory_that_is_gone_is_one_clear_line(place: Path) -> None:
    done = in_a_shell(place, "mkdir gone && cd gone && rmdir ../gone && $HANDRAIL call list")
    assert (done.returncode, done.stderr) == (1, "handrail: the current directory does not exist any more\n")


def test_a_workspace_whose_name_is_not_utf_8_is_one_like_any_other(place: Path) -> None:
    workspace = os.fsdecode(os.fsencode(place) + b"/w\xff")
    os.mkdir(workspace)
    written = outcome(place, "write", "path=a", "content=x", "-w", workspace, "--approve", "always")
    assert written["status"] == "ok"
    assert outcome(place, "read", "path=a", "-w", workspace)["text"] == "x"
    skill = place / "size.yaml"
    skill.write_text(
        "name: size\ndescription: d\ntools:\n  - name: of\n    risk: read_only\n    path_args: [path]\n"
        "    parameters: {type: object, properties: {path: {type: string}}}\n"
        "    code: result = len(open(input_data['path']).read())\n"
    )
    sized = outcome(place, "size__of", "path=a", "-w", workspace, "--skill", str(skill), "--allow-weaker-walls")
    assert sized["value"] == 1, sized
    asked = outcome(place, "write", "path=b", "content=x", "-w", workspace, "--approve", "never")
    assert asked["reason"] == "changes_rejected"
    parked = outcome(place, "write", "path=b", "content=x", "-w", workspace, "--approve", "park")
    answered = handrail(place, "approvals", "approve", parked["approval_id"], "--run", "-w", workspace)
    assert answered.returncode == 0, answered.stderr
    assert (Path(workspace) / "b").read_text() == "x"
    assert handrail(place, "undo", written["call_id"], "-w", workspace).returncode == 0
    assert os.listdir(workspace) == ["b"]
    assert handrail(place, "journal", "verify", "-w", workspace).returncode == 0


def test_a_path_that_leads_to_a_name_that_is_not_utf_8_is_one_like_any_other(place: Path) -> None:
    os.makedirs(os.fsencode(place) + b"/d\xff/x")
    os.symlink(b"d\xff", place / "link")
    assert outcome(place, "list", "path=link/x/..")["text"] == "x/"


def test_the_id_of_a_call_stands_on_one_line_however_narrow_the_window(place: Path) -> None:
    parked = in_a_shell(place, "COLUMNS=20 $HANDRAIL call write path=a content=x --approve park")
    assert re.search(r"^pending \(awaiting_approval\) · [0-9.]+ ms · call [0-9a-f-]{36}$", parked.stderr, re.MULTILINE)


STEERS = "\x1b[2J\x9b2J\u202e\u200b\x07"


def harmless(text: str) -> bool:
    return not any(mark in text for mark in STEERS.replace("[2J", "").replace("2J", ""))


def test_no_command_prints_what_can_steer_a_terminal(place: Path) -> None:
    skill = place / "odd.yaml"
    described = json.dumps(f"Nothing.{STEERS}")
    tool = f"{{name: nothing, description: {described}, risk: safe, code: 'result = 1'}}"
    skill.write_text(f"name: odd\ndescription: x\ntools:\n  - {tool}\n")
    given = ("-w", str(place), "--skill", str(skill))
    one, whole = handrail(place, "tools", "nothing", *given), handrail(place, "tools", "--json", *given)
    listed = handrail(place, "tools", *given)
    assert [done.returncode for done in (one, whole, listed)] == [0, 0, 0], (one, whole, listed)
    assert json.loads(one.stdout)["description"] == f"Nothing.{STEERS}"  # the same text, written so that it is harmless
    assert json.loads(one.stdout) in json.loads(whole.stdout)
    broken = place / "broken.yaml"
    broken.write_text(f"name: odd\ndescription: x\n{json.dumps(STEERS)}: 1\n")
    refused = [
        handrail(place, "skill", "check", str(broken)),
        handrail(place, "skill", "check", str(broken), "--json"),
        handrail(place, "tools", "-w", str(place), "--skill", str(broken)),
        handrail(place, "tools", f"none{STEERS}", "-w", str(place)),
        handrail(place, "call", f"none{STEERS}", "-w", str(place)),
    ]
    assert all(done.returncode for done in refused)
    for done in (one, whole, listed, *refused):
        assert harmless(done.stdout + done.stderr), done


@pytest.mark.parametrize("words", ["approvals show", "approvals approve", "grants revoke", "journal settle"])
def test_an_id_that_is_no_text_is_refused_and_no_journal_is_called_damaged(place: Path, words: str) -> None:
    handrail(place, "call", "read", "path=notes.txt")
    done = in_a_shell(place, f"$HANDRAIL {words} \"$(printf '\\377')\" {'happened' * ('settle' in words)}")
    assert (done.returncode, done.stderr) == (2, "handrail: '\\udcff' is not Unicode text, and so is no id\n")


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_is_none_is_a_matter_of_usage(place: Path, port: str) -> None:
    done = handrail(place, "serve", "--http", port)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("run", "--max-turns", "0", "go"), "--max-turns"),
        (("run", "--max-tokens", "-1", "go"), "--max-tokens"),
        (("run", "--max-seconds", "nan", "go"), "--max-seconds"),
        (("proxy", "--timeout", "inf", "--", "cat"), "--timeout"),
        (("proxy", "--start-timeout", "0", "--", "cat"), "--start-timeout"),
    ],
)
def test_a_number_that_cannot_work_is_refused_by_its_options_name(place: Path, words: tuple[str, ...], name: str):
    done = handrail(place, *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"handrail: {name} must be a "), done.stderr
