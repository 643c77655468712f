"""The environment that the peers are measured in: pinned in ``peers.txt``, made when it is first needed."""

import os
import shutil
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
        venv.create(ENVIRONMENT, with_pip=True, clear=not python.exists())
        subprocess.run(
            [*_installer(python), "--quiet", "-r", HERE / "peers.txt", "-e", HERE.parent], check=True, stdout=sys.stderr
        )
        stamp.write_text(wanted, encoding="utf-8")
    return str(python)


def _installer(python: Path) -> list[str | Path]:
    """``uv`` where there is one, which takes seconds; else the environment's own ``pip``, which takes minutes."""
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", python]
    return [python, "-m", "pip", "install", "--no-compile"]


def in_peers_environment() -> None:
    """Go on in the peers' environment: the running script is executed again there, with the same words."""
    if os.environ.get(_INSIDE) != "1":
        python = prepared()
        os.execve(python, [python, *sys.argv], {**os.environ, _INSIDE: "1", "PYTHONWARNINGS": "ignore"})
