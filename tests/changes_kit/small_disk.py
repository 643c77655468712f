"""A program that commits where a disk is full: ``unshare -Urm python small_disk.py PLACE workspace|state KIB``.

Mounts a tmpfs of KIB kibibytes at PLACE/workspace or PLACE/state and tries to commit about 600 KiB in twelve files.
Prints one JSON line: what was raised, and whether the workspace is as it was.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from changes_kit.committing import commit
from changes_kit.trees import grow, tree_of
from handrail.changes.plan import Plan
from handrail.changes.store import ChangeStore
from handrail.errors import ChangeError
from handrail.workspace import Workspace


def main() -> None:
    """The program."""
    base, small, kib = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for name in ("workspace", "state"):
        (base / name).mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "tmpfs", str(base / small)], check=True)
    root = base / "workspace"
    grow(root, {f"old{number}": bytes([number]) * 10_000 for number in range(12)})
    before = tree_of(root)
    raised = None
    with Workspace(root) as workspace, ChangeStore(str(base / "state"), workspace) as store:
        try:
            plan = Plan(workspace, store.contents)
            for number in range(12):
                plan.write(f"old{number}", os.urandom(50_000))
            commit(store, plan.changes())
        except ChangeError as error:
            raised = str(error)
        same = tree_of(root) == before
        again = None
        if raised is not None and small == "workspace":
            for number in range(6):
                (root / f"old{number}").unlink()
            plan = Plan(workspace, store.contents)
            plan.write("small", b"fits now")
            commit(store, plan.changes())
            again = (root / "small").read_text()
    print(json.dumps({"raised": raised, "same": same, "again": again}))


if __name__ == "__main__":
    main()
