"""The fixtures of the MCP tests."""

import sys
from pathlib import Path

import pytest

from handrail.mcp.catalog import ServerSpec
from handrail.mcp.pins import PinStore
from mcp_kit import VICTIM, Victim


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    command = (sys.executable, "-I", "-S", str(VICTIM), str(tmp_path / "script.json"))
    spec = ServerSpec(name="victim", command=command, sandbox="none", timeout=30.0)
    made = Victim(tmp_path, spec, PinStore(str(tmp_path / "state" / "pins.json")))
    made.script()
    return made
