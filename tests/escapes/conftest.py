"""Who attacks: root, and an ordinary user without any privilege. As an ordinary user there is only the second."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ORDINARY_UID = 61234
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
SECONDS = 240


class Attacker:
    """A user who may start programs, with a directory of their own."""

    def __init__(self, user: str, directory: Path) -> None:
        self.user = user
        self.directory = directory
        self._drops = user == "ordinary" and os.geteuid() == 0

    def command(self, program: Path | str, *arguments: object) -> list[str]:
        """The command line that runs a Python program as this user."""
        words = [sys.executable, str(program), *map(str, arguments)]
        if not self._drops:
            return words
        reachable = [sys.base_prefix, sys.prefix, str(HERE.parents[1])]
        return [sys.executable, "-I", "-S", str(HERE / "ordinary.py"), str(ORDINARY_UID), *reachable, "--", *words]

    @property
    def environment(self) -> dict[str, str]:
        """A small environment; the rest of ours is nobody's business."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory), "LANG": "C.UTF-8"}

    def start(self, program: Path | str, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a Python program as this user."""
        return subprocess.Popen(
            self.command(program, *arguments),
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            **options,
        )

    def ask(self, program: Path | str, *arguments: object) -> Any:
        """Run a Python program as this user and return the JSON that it printed."""
        with self.start(program, *arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            try:
                output, errors = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, errors.decode()
        return json.loads(output)

    def empty_directory(self) -> Path:
        """A new directory of this user's."""
        path = Path(tempfile.mkdtemp(dir=self.directory))
        if self._drops:
            os.chown(path, ORDINARY_UID, ORDINARY_UID)
        return path


@pytest.fixture(scope="session", params=USERS)
def attacker(request: pytest.FixtureRequest) -> Iterator[Attacker]:
    """Each user in turn."""
    directory = Path(tempfile.mkdtemp(prefix="handrail-escapes-"))
    directory.chmod(0o755)
    if request.param == "ordinary" and os.geteuid() == 0:
        os.chown(directory, ORDINARY_UID, ORDINARY_UID)
    yield Attacker(request.param, directory)
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def driven(attacker: Attacker) -> dict[str, Any]:
    """What the battery was answered outside of the walls, and through each entry."""
    return attacker.ask(HERE / "driver.py", attacker.empty_directory())


@pytest.fixture(scope="session")
def played(attacker: Attacker) -> dict[str, Any]:
    """What every scenario came to."""
    found = attacker.ask(HERE / "scenarios.py", attacker.empty_directory())
    broken = [
        f"{name}: {each['raised']}" for name, each in found.items() if isinstance(each, dict) and "raised" in each
    ]
    assert not broken, "\n".join(broken)
    return found
