"""What staging and committing cost: ``python benchmarks/staging.py --json``.

For workspaces of 10, 10,000 and 100,000 files, in one run and turn by turn, each with its cell parked and nothing going
on beside it: a cell call that writes one file directly (unstaged); the same call on a layer, with its changes read and
their contents kept (staged: all that there is before somebody is asked); and the commit, which an unstaged call has
none of. Then the same two calls without a pause between them, the throughput of commits of 1,000 small files, and how
many bytes a call that writes without end gets onto its layer.

``slowness`` is how much slower this machine runs Python now than one of 2020 (``sum(range(1000))`` in 10 µs).
"""

import argparse
import json
import os
import platform
import shutil
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from machine import slowness

from handrail.changes.plan import Plan
from handrail.changes.store import ChangeStore
from handrail.sandbox.profile import profile_for
from handrail.sandbox.staging_layer import read_layer
from handrail.sandbox.staging_moment import Moment
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.tool import Capability
from handrail.workspace import Workspace
from handrail_cell.wire import Limits

WRITE_ONE = "open(input_data['path'], 'w').write(input_data['text'])"
WRITE_WITHOUT_END = """
size = 0
try:
    with open(input_data['path'], 'wb') as file:
        while True:
            size += file.write(bytes(65536))
            file.flush()
except OSError:
    pass
"""


async def _nothing() -> None:
    pass


def grow(root: Path, files: int) -> None:
    """``files`` empty files, a hundred in each directory: one system call for each, because there are many."""
    for first in range(0, files, 100):
        directory = root / f"d{first // 100}"
        directory.mkdir()
        at = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        for number in range(first, min(first + 100, files)):
            os.mknod(f"f{number}", 0o644 | stat.S_IFREG, dir_fd=at)
        os.close(at)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds, and what came of it."""
    started = time.perf_counter()
    made = action()
    return (time.perf_counter() - started) * 1000, made


def say(text: str) -> None:
    """Where it is, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def call(supervisor: Supervisor, store: ChangeStore, text: str, *, stage: bool, code: str = WRITE_ONE) -> Any:
    """One cell call that writes one file; its changes where it is staged."""
    profile = profile_for(Capability(writes=True), store.workspace.path, stage=stage)
    data = json.dumps({"path": store.workspace.path + "/d0/f0", "text": text}).encode()
    since = Moment.now() if stage else None
    result = supervisor.run_sync(InlineCode(code, "bench", data), profile)
    if result.exit_code != 0:
        raise RuntimeError(result)
    if since is None or result.staged is None:
        return None
    with result.staged as layer:
        return read_layer(layer.upper_fd, store.workspace.fd, store.contents, since)


def commit(store: ChangeStore, changes: Any, name: str) -> None:
    """Make changes real."""
    anyio.run(lambda: store.commit(name, changes, begun=_nothing, ended=_nothing))


def wait_idle(supervisor: Supervisor, store: ChangeStore) -> None:
    """Let the pool fill and what was used be closed, so that the next measurement stands alone."""
    profiles = [profile_for(Capability(writes=True), store.workspace.path, stage=stage) for stage in (False, True)]
    deadline = time.monotonic() + 30
    while not all(supervisor.idle(profile) for profile in profiles) and time.monotonic() < deadline:
        time.sleep(0.002)


def one_file(base: Path, supervisor: Supervisor, files: int, repeats: int) -> dict[str, Any]:
    """Unstaged, staged and its commit, turn by turn; then unstaged and staged without a pause.

    The workspace is removed in the end with all others: ext4 makes files slowly beside many that were just removed.
    """
    say(f"one file among {files}")
    root = base / f"workspace-{files}"
    root.mkdir()
    grow(root, files)
    plain, staged, committed = [], [], []
    hurried: dict[bool, list[float]] = {False: [], True: []}
    with Workspace(root) as workspace, ChangeStore(str(base / f"state-{files}"), workspace) as store:
        for stage in (False, True):
            call(supervisor, store, "warm", stage=stage)
        for turn in range(repeats):
            wait_idle(supervisor, store)
            plain.append(timed(lambda turn=turn: call(supervisor, store, f"plain {turn}", stage=False))[0])
            wait_idle(supervisor, store)
            took, changes = timed(lambda turn=turn: call(supervisor, store, f"staged {turn}", stage=True))
            staged.append(took)
            assert changes.paths == (b"d0/f0",)
            wait_idle(supervisor, store)
            committed.append(timed(lambda turn=turn, made=changes: commit(store, made, f"{files}-{turn}"))[0])
        for stage, samples in hurried.items():
            for turn in range(repeats):
                samples.append(timed(lambda turn=turn, stage=stage: call(supervisor, store, f"{turn}", stage=stage))[0])
    middle = statistics.median
    return {
        "files": files,
        "repeats": repeats,
        "unstaged_ms": round(middle(plain), 2),
        "staged_ms": round(middle(staged), 2),
        "staged_over_unstaged": round(middle(staged) / middle(plain), 3),
        "commit_ms": round(middle(committed), 2),
        "staged_and_committed_over_unstaged": round((middle(staged) + middle(committed)) / middle(plain), 3),
        "without_pause": {
            "unstaged_ms": round(middle(hurried[False]), 2),
            "staged_ms": round(middle(hurried[True]), 2),
            "staged_over_unstaged": round(middle(hurried[True]) / middle(hurried[False]), 3),
        },
    }


def throughput(base: Path, files: int) -> dict[str, Any]:
    """A commit of many small new files, and of edits to all of them."""
    say(f"{files} files at once")
    root = base / "many"
    root.mkdir()
    with Workspace(root) as workspace, ChangeStore(str(base / "state-many"), workspace) as store:
        seconds = {}
        for word in ("created", "edited"):
            plan = Plan(workspace, store.contents)
            for number in range(files):
                plan.write(f"d{number % 10}/f{number}", f"{word} {number}\n".encode())
            changes = plan.changes()
            seconds[word] = timed(lambda changes=changes, word=word: commit(store, changes, word))[0] / 1000
    return {"files": files} | {f"{word}_files_per_s": round(files / took) for word, took in seconds.items()}


def bound(base: Path, supervisor: Supervisor, limit: int) -> dict[str, Any]:
    """How much a call that writes without end gets onto its layer, and into the workspace."""
    say("a call that writes without end")
    root = base / "bounded"
    root.mkdir()
    profile = profile_for(Capability(writes=True), str(root), Limits(disk_bytes=limit), stage=True)
    data = json.dumps({"path": str(root / "big")}).encode()
    result = supervisor.run_sync(InlineCode(WRITE_WITHOUT_END, "bench", data), profile)
    assert result.staged is not None
    with result.staged as layer:
        found = os.fstatvfs(layer.upper_fd)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
    return {"limit_bytes": limit, "layer_bytes": used, "within": used <= limit, "workspace_names": os.listdir(root)}


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 10_000, 100_000])
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="handrail-bench-"))
    try:
        with Supervisor() as supervisor:
            report = {
                "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()},
                "slowness": slowness(),
                "one_file": [one_file(base, supervisor, size, options.repeats) for size in options.sizes],
                "throughput": throughput(base, 1_000),
                "bound": bound(base, supervisor, 8 << 20),
            }
    finally:
        shutil.rmtree(base)
    report["at_most_twice"] = all(row["staged_over_unstaged"] <= 2 for row in report["one_file"])
    json.dump(report, sys.stdout, indent=None if options.json else 2)
    print()


if __name__ == "__main__":
    main()
