"""Whether this machine can stage, and on what: tried with a cell that changes a small workspace of its own."""

import json
import os
import tempfile

from handrail.changes.contents import Blobs
from handrail.errors import ChangeError, OverlayRefused, SandboxError
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.staging import Staging
from handrail.sandbox.staging_copy import CopyLimit
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.workspace import Workspace
from handrail_cell.wire import Limits, Protection, State

_TRIAL = """
import os
os.chdir(input_data)
os.unlink("gone")
with open("new", "w") as file:
    file.write("new")
"""
_EXPECTED = {("create", b"new"), ("delete", b"gone")}
_BY_OVERLAY = "on an overlay: a staged call's layer held exactly what it did"
_BY_COPY = (
    f"workspaces of at most {CopyLimit().bytes >> 20} MiB and {CopyLimit().names} names are copied for each call that "
    "writes, larger ones refused; a call on a copy held exactly what it did"
)
_REMEDY = "Linux 5.11 or later with overlayfs in user namespaces, and user attributes on tmpfs (6.6)"


def probe_staging(*, overlay: bool = True) -> Protection:
    """Run one staged call, on an overlay or else on a copy, and compare what was read with what it did.

    ``overlay=False`` tries the copy alone.
    """
    with tempfile.TemporaryDirectory(prefix="handrail-probe-") as base:
        root = os.path.join(os.path.realpath(base), "workspace")
        refused = "an overlay was not tried"
        try:
            if overlay:
                try:
                    return _judged(_changes(root, f"{base}/overlay", Staging()), "active", _BY_OVERLAY, "")
                except OverlayRefused as refusal:
                    refused = f"the kernel refuses an overlay ({refusal})"
            found = _changes(root, f"{base}/copy", Staging(overlay=False))
            return _judged(found, "degraded", f"{refused}; {_BY_COPY}", _REMEDY)
        except (SandboxError, ChangeError, OSError) as error:
            return Protection("staging", "unavailable", str(error), _REMEDY)


def _judged(found: set[tuple[str, bytes]], state: State, evidence: str, remedy: str) -> Protection:
    if found != _EXPECTED:
        return Protection("staging", "unavailable", f"a staged call's changes were read as {sorted(found)}", _REMEDY)
    return Protection("staging", state, evidence, remedy)


def _changes(root: str, contents: str, staging: Staging) -> set[tuple[str, bytes]]:
    """What is read of a trial that deletes one file and makes another. Raises :class:`OverlayRefused`."""
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, "gone"), "w", encoding="ascii") as file:
        file.write("gone")
    profile = SandboxProfile(workspace=root, access="stage", limits=Limits(wall_s=20))
    blobs = Blobs(contents, 1 << 20)
    try:
        with Workspace(root) as workspace, Supervisor(pool_size=0) as supervisor:
            stage = staging.begin(workspace)
            trial = InlineCode(_TRIAL, "probe.py", json.dumps(workspace.path).encode())
            result = supervisor.run_sync(trial, stage.profile(profile))
            if result.staged is None or result.exit_code != 0:
                raise SandboxError(result.error or "the staged trial did not end well")
            with result.staged as layer:
                changes = stage.changes(layer.upper_fd, workspace.fd, blobs)
    finally:
        blobs.close()
    return {(change.verb, change.path) for change in changes}
