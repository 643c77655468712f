"""The environment that the peers are measured in: pinned in ``peers.txt``, made when it is first needed."""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".peers"
_INSIDE = "HANDRAIL_BENCHMARK_INSIDE"


def prepared() -> str:
    """The interpreter of an environment with the peers and this checkout; made when it is missing or outdated."""
    python = ENVIRONMENT / "bin/python"
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = (HERE / "peers.txt").read_text(encoding="utf-8") + "\n".join(project["dependencies"]) + sys.version
    stamp = ENVIRONMENT / "installed.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "-r", HERE / "peers.txt"]
        subprocess.run([*install, "-e", HERE.parent], check=True, stdout=sys.stderr)
        stamp.write_text(wanted, encoding="utf-8")
    return str(python)


def in_peers_environment() -> None:
    """Go on in the peers' environment: the running script is executed again there, with the same words."""
    if os.environ.get(_INSIDE) != "1":
        python = prepared()
        os.execve(python, [python, *sys.argv], {**os.environ, _INSIDE: "1", "PYTHONWARNINGS": "ignore"})
