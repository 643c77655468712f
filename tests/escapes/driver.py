"""Runs the battery outside the walls and through every entry, as whoever starts it, and prints the answers as JSON.

``python driver.py DIRECTORY`` makes what the attacks aim at in ``DIRECTORY`` (which must be empty): a secret file,
listening sockets, a process with a token in its environment. It runs the battery once outside, where the attacks are
to succeed, and then through each entry, where they are not.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from handrail import AlwaysApprove, ToolExecutor, ToolRegistry
from handrail.builtins.bash import bash_plugin
from handrail.changes.store import ChangeStore
from handrail.inline import InlineTool, InlineToolExecutor, SkillContext
from handrail.sandbox.bodies import Cells
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.skills import load_skill
from handrail.workspace import Workspace

BATTERY = Path(__file__).parents[1] / "victims" / "battery.py"
WRITTEN = ("battery.py", "facts.json", "evil.txt", "gone.txt", "hard-link")
Answers = dict[str, Any]


class Target:
    """What the attacks aim at. ``facts`` says where it is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token = secrets.token_hex(16)
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        (self.workspace / "kept.txt").write_text("kept")
        secret = directory / "secret.txt"
        secret.write_text(self.token)
        (self.workspace / "link-to-secret").symlink_to(secret)
        abstract = f"handrail-{secrets.token_hex(8)}"
        self._sockets = [
            listening(socket.AF_INET, ("127.0.0.1", 0), self.token),
            listening(socket.AF_UNIX, "\0" + abstract, self.token),
            listening(socket.AF_UNIX, str(directory / "s"), self.token),
            listening(socket.AF_UNIX, str(self.workspace / "stream.socket"), self.token),
            bound(str(self.workspace / "datagram.socket")),
            bound("\0" + abstract + "-datagram"),
        ]
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "HANDRAIL_TOKEN": self.token},
        )
        self.facts: dict[str, Any] = {
            "secret": str(secret),
            "token": self.token,
            "workspace": str(self.workspace),
            "host_pid": self.child.pid,
            "hostname": os.uname().nodename,
            "port": self._sockets[0].getsockname()[1],
            "abstract": abstract,
            "socket": str(directory / "s"),
        }

    def close(self) -> None:
        self.child.communicate(b"\n")
        for one in self._sockets:
            one.close()


def listening(family: int, address: Any, token: str) -> socket.socket:
    """A socket that greets everyone with the token."""
    server = socket.socket(family)
    server.bind(address)
    server.listen(16)

    def greet() -> None:
        with contextlib.suppress(OSError):
            while True:
                stream, _ = server.accept()
                with stream:
                    stream.sendall(token.encode())

    threading.Thread(target=greet, daemon=True).start()
    return server


def bound(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(address)
    return receiver


# ── entries ──────────────────────────────────────────────────────────────────────────────────────────────────────


def outside(target: Target) -> Answers:
    facts = target.directory / "outside.json"
    facts.write_text(json.dumps(target.facts))
    done = subprocess.run(
        [sys.executable, str(BATTERY), str(facts)],
        capture_output=True,
        cwd=target.directory,
        env={**os.environ, "HANDRAIL_TOKEN": target.token},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the battery failed outside: {done.returncode} {done.stderr.decode()}")
    return json.loads(done.stdout)


def by_library(target: Target, supervisor: Supervisor) -> Answers:
    profile = SandboxProfile(workspace=str(target.workspace), access="read")
    code = InlineCode(BATTERY.read_text(), "battery", json.dumps({**target.facts, "inside": True}).encode())
    result = supervisor.run_sync(code, profile)
    if result.value is None:
        raise RuntimeError(f"library: {result}")
    return json.loads(result.value)


def by_inline(target: Target, supervisor: Supervisor) -> Answers:
    with SkillContext(target.workspace) as context:
        executor = InlineToolExecutor(supervisor=supervisor)
        tool = InlineTool(name="battery", code=BATTERY.read_text())
        result = executor.execute(tool, context, {**target.facts, "inside": True})
    if not result.success:
        raise RuntimeError(f"inline: {result}")
    return result.value


def skill_file(target: Target) -> Path:
    code = "".join(f"      {line}\n" if line else "\n" for line in BATTERY.read_text().split("\n"))
    file = target.directory / "battery.yaml"
    file.write_text(
        "name: battery\ndescription: Attacks.\ntools:\n  - name: attack\n    parameters: {type: object}\n"
        "    risk: mutation\n    capability: {reads: true, exec: true}\n    path_args: []\n    code: |\n" + code
    )
    return file


def by_skill(target: Target, supervisor: Supervisor) -> Answers:
    registry = ToolRegistry()
    load_skill(skill_file(target)).register(registry, Cells(supervisor))
    with ToolExecutor(registry, workspace=target.workspace, approver=AlwaysApprove()) as executor:
        outcome = asyncio.run(executor.execute("skill:battery/attack", {**target.facts, "inside": True}))
    if not outcome.succeeded:
        raise RuntimeError(f"skill: {outcome}")
    return outcome.value


def by_bash(target: Target, supervisor: Supervisor) -> Answers:
    registry = ToolRegistry()
    registry.register_plugin(bash_plugin(Cells(supervisor)))
    (target.workspace / "battery.py").write_text(BATTERY.read_text())
    (target.workspace / "facts.json").write_text(json.dumps({**target.facts, "inside": True}))
    command = f"'{sys.executable}' battery.py facts.json"
    with (
        Workspace(target.workspace) as workspace,
        ChangeStore(str(target.directory / "state"), workspace) as changes,
        ToolExecutor(registry, workspace=workspace, approver=AlwaysApprove(), changes=changes) as executor,
    ):
        outcome = asyncio.run(executor.execute("bash", {"command": command}))
    if not outcome.succeeded:
        raise RuntimeError(f"bash: {outcome}")
    return json.loads(outcome.text)


def by_command_line(target: Target, supervisor: Supervisor) -> Answers:
    facts = json.dumps({**target.facts, "inside": True})
    words = ["call", "skill:battery/attack", facts, "--skill", str(skill_file(target)), "--approve", "always", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "handrail", *words],
        capture_output=True,
        cwd=target.workspace,
        env={**os.environ, "HANDRAIL_TOKEN": target.token},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"command line: {done.returncode} {done.stdout.decode()} {done.stderr.decode()}")
    return json.loads(done.stdout)["value"]


ENTRIES: dict[str, Callable[[Target, Supervisor], Answers]] = {
    "library": by_library,
    "inline": by_inline,
    "skill": by_skill,
    "bash": by_bash,
    "command-line": by_command_line,
}


def main() -> None:
    directory = Path(sys.argv[1])
    target = Target(directory)
    try:
        answers = {"outside": outside(target)}
        with Supervisor() as supervisor:
            for name, enter in ENTRIES.items():
                answers[name] = enter(target, supervisor)
        written = sorted(path.name for path in target.workspace.iterdir() if path.name in WRITTEN)
    finally:
        target.close()
    json.dump({"written": written, "facts": target.facts, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
