"""Running the real command against a scripted server: its own state and configuration, nothing of the user's."""

import os
import subprocess
import sys
from pathlib import Path

from fake_providers import FakeProvider, Handler, openai_streamed


def say(text: str) -> Handler:
    """The server answers with text."""
    return openai_streamed(text)


def ask_for(*calls: tuple[str, str], text: str = "") -> Handler:
    """The server answers with calls: (tool, arguments as JSON text)."""
    return openai_streamed(text, [(f"id{n}", name, arguments) for n, (name, arguments) in enumerate(calls)])


class Place:
    """A workspace, and a user's own directories beside it."""

    def __init__(self, root: Path, server: FakeProvider) -> None:
        self.workspace = root / "workspace"
        self.workspace.mkdir()
        self.config = root / "config"
        (self.config / "handrail").mkdir(parents=True)
        (self.config / "handrail" / "models.toml").write_text(
            'default = "fake"\n[models.fake]\nprovider = "openai"\nmodel = "fake-1"\n'
            f'base_url = "{server.url}"\nkey_env = "FAKE_KEY"\n'
        )
        self.environment = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "HOME")},
            "XDG_CONFIG_HOME": str(self.config),
            "XDG_STATE_HOME": str(root / "state"),
            "FAKE_KEY": "k",
            "TERM": "xterm-256color",
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "PROMPT_TOOLKIT_NO_CPR": "1",  # the emulator answers no questions
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "handrail", "run", "-w", str(self.workspace), *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
