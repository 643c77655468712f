"""Whether this machine can stage: tried for real, with a cell that changes a small workspace of its own."""

import json
import os
import tempfile

from handrail.changes.contents import Blobs
from handrail.errors import ChangeError, SandboxError
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.staging import Moment, read_layer
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail_cell.wire import Limits, Protection

_TRIAL = """
import os
os.chdir(input_data)
os.unlink("gone")
with open("new", "w") as file:
    file.write("new")
"""
_EXPECTED = {("create", b"new"), ("delete", b"gone")}
_REMEDY = "Linux 5.11 or later with overlayfs in user namespaces, and user attributes on tmpfs (6.6)"


def probe_staging() -> Protection:
    """Run one staged call and compare what its layer says with what it did."""
    with tempfile.TemporaryDirectory(prefix="handrail-probe-") as base:
        root = os.path.join(os.path.realpath(base), "workspace")
        os.mkdir(root)
        with open(os.path.join(root, "gone"), "w", encoding="ascii") as file:
            file.write("gone")
        try:
            found = _changes(root, os.path.join(base, "contents"))
        except (SandboxError, ChangeError, OSError) as error:
            return Protection("staging", "unavailable", str(error), _REMEDY)
    if found != _EXPECTED:
        return Protection("staging", "unavailable", f"a layer said {sorted(found)}", _REMEDY)
    return Protection("staging", "active", "a staged call's layer held exactly what it did", "")


def _changes(root: str, contents: str) -> set[tuple[str, bytes]]:
    profile = SandboxProfile(workspace=root, access="stage", limits=Limits(wall_s=20))
    workspace = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    blobs = Blobs(contents, 1 << 20)
    try:
        with Supervisor(pool_size=0) as supervisor:
            since = Moment.now()
            result = supervisor.run_sync(InlineCode(_TRIAL, "probe.py", json.dumps(root).encode()), profile)
        if result.staged is None or result.exit_code != 0:
            raise SandboxError(result.error or "the staged trial did not end well")
        with result.staged as layer:
            changes = read_layer(layer.upper_fd, workspace, blobs, since)
    finally:
        os.close(workspace)
        blobs.close()
    return {(change.verb, change.path) for change in changes}
