"""A program that forks a child for every order and lets it die at the point it is told to.

``python doomed.py`` reads one JSON order a line: ``{"at": N, "do": "commit" | "stage" | "undo" | "recover" | "meddle",
"root": …, "state": …, "call": …, "upper": …}``. The child kills itself with SIGKILL at the Nth fault point it passes.
Answers one JSON line: ``{"died": bool, "points": [names passed], "error": text or null}``.
"""

import json
import os
import signal
import sys

import anyio

from handrail import faults
from handrail.changes.changeset import ChangeSet
from handrail.changes.store import ChangeStore
from handrail.errors import ChangeConflict
from handrail.sandbox.staging_layer import read_layer
from handrail.sandbox.staging_moment import Moment
from handrail.workspace import Workspace


async def _nothing() -> None:
    pass


def _commit(store: ChangeStore, call: str, changes: ChangeSet) -> None:
    anyio.run(lambda: store.commit(call, changes, begun=_nothing, ended=_nothing))


def _do(order: dict) -> None:
    with Workspace(order["root"]) as workspace, ChangeStore(order["state"], workspace) as store:
        match order["do"]:
            case "commit" | "meddle":
                changes = anyio.run(store.held, order["call"])
                assert changes is not None
                _commit(store, order["call"], changes)
            case "stage":
                upper = os.open(order["upper"], os.O_RDONLY | os.O_DIRECTORY)
                _commit(store, order["call"], read_layer(upper, workspace.fd, store.contents, Moment.now()))
            case "undo":
                _commit(store, "undo", store.inverse_of(order["call"]))
            case "recover":
                store.recover()


def _child(order: dict, out: int) -> None:
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += 1
        os.write(out, name.encode() + b"\n")
        if order["do"] == "meddle" and name == "apply:step" and passed > 3:
            with open(os.path.join(order["root"], order["edit"]), "w") as file:
                file.write("outside")
        if passed == order["at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    with faults.armed(hook):
        try:
            _do(order)
        except ChangeConflict as error:
            os.write(out, f"!{error}\n".encode())


def _carry_out(order: dict) -> dict:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _child(order, writing)
            os._exit(0)
        finally:
            os._exit(70)
    os.close(writing)
    with open(reading) as lines:
        words = lines.read().splitlines()
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise RuntimeError(f"the child failed on {order}")
    errors = [word[1:] for word in words if word.startswith("!")]
    points = [word for word in words if not word.startswith("!")]
    return {"died": os.WIFSIGNALED(status), "points": points, "error": errors[0] if errors else None}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_carry_out(json.loads(line))), flush=True)
