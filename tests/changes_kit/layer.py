"""A staged layer from a real overlay, made by the small program beside this file."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from handrail.changes.changeset import ChangeSet
from handrail.changes.store import ChangeStore
from handrail.sandbox.staging_layer import read_layer
from handrail.sandbox.staging_moment import Moment

_PROGRAM = Path(__file__).with_name("layer_program.py")


def stage(
    store: ChangeStore,
    operations: list[list],
    *,
    during: Callable[[], object] | None = None,
    read: Callable[..., ChangeSet] = read_layer,
) -> ChangeSet:
    """Carry out ``operations`` on an overlay over the workspace; return what they would change.

    ``during`` is called after the operations and before the layer is read.
    """
    ours, theirs = socket.socketpair()
    order = json.dumps({"lower": store.workspace.path, "operations": operations})
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        assert process.stdin is not None
        process.stdin.write(order.encode())
        process.stdin.close()
        since = Moment.now()
        ours.send(b"g")
        _, fds, _, _ = socket.recv_fds(ours, 16, 1)
        assert process.stderr is not None
        complaint = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait() == 0, complaint
    try:
        if during is not None:
            during()
        return read(fds[0], store.workspace.fd, store.contents, since)
    finally:
        os.close(fds[0])
