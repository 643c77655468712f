"""A program in whose mount table the kernel refuses a third overlay: ``unshare -m python refused_overlay.py BASE``
(``unshare -mc --keep-caps`` as an ordinary user).

Overlays are stacked at most two deep (FILESYSTEM_MAX_STACK_DEPTH). BASE/workspace is the second of a stack, so a
cell's own would be the third. Runs one call that writes there, commits it, and prints one JSON line.
"""

import json
import os
import sys
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from changes_kit.committing import commit
from changes_kit.jobs import job_in
from changes_kit.trees import grow
from handrail.changes.store import ChangeStore
from handrail.sandbox.bodies import CellBody, Cells
from handrail.sandbox.staging import Staging
from handrail.sandbox.staging_copy import CopyLimit
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.tool import Capability
from handrail.workspace import Workspace
from handrail_cell import _libc
from handrail_cell.namespaces import UNOWNED_ID
from handrail_cell.wire import Limits

CODE = "import os\nos.chdir(input_data)\nopen('a', 'a').write(' and more')\nos.unlink('b')\n"


def give_to_cells(path: Path) -> None:
    """Root's cells are another user, and an overlay cannot be shown under another owner than it has."""
    if os.geteuid() == 0:
        os.chown(path, UNOWNED_ID, UNOWNED_ID)


def stacked(base: Path) -> Path:
    """BASE/workspace, an overlay over an overlay."""
    grow(base / "ground", {"a": "a", "b": "b"})
    lower = base / "ground"
    for path in (lower, *lower.iterdir()):
        give_to_cells(path)
    for top in ("first", "workspace"):
        above = base / f"above-{top}"
        above.mkdir()
        _libc.mount(b"tmpfs", bytes(above), b"tmpfs", 0, b"mode=755")
        for name in (above / "upper", above / "work", base / top):
            name.mkdir()
        give_to_cells(above / "upper")
        options = f"lowerdir={lower},upperdir={above}/upper,workdir={above}/work,userxattr"
        _libc.mount(b"overlay", bytes(base / top), b"overlay", 0, options.encode())
        lower = base / top
    return lower


def called(supervisor: Supervisor, store: ChangeStore, limit: CopyLimit) -> dict:
    """One call on its stage, and what it came to."""
    program = InlineCode(CODE, "call", json.dumps(store.workspace.path).encode())
    cells = Cells(supervisor, staging=Staging(copy=limit))
    body = CellBody(cells, lambda _: program, capability=Capability(writes=True), limits=Limits())
    effect = anyio.run(body.run, job_in(store))
    if effect.changes is not None:
        commit(store, effect.changes)
    return {"status": effect.outcome.status, "text": effect.outcome.text}


def main() -> None:
    """The program."""
    base = Path(sys.argv[1])
    root = stacked(base)
    with Workspace(root) as workspace, ChangeStore(str(base / "state"), workspace) as store, Supervisor() as supervisor:
        refused = called(supervisor, store, CopyLimit(names=1))
        copied = called(supervisor, store, CopyLimit())
    left = {path.name: path.read_text() for path in root.iterdir()}
    print(json.dumps({"refused": refused, "copied": copied, "left": left}))


if __name__ == "__main__":
    main()
