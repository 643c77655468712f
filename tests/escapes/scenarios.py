"""Attacks that take more than one call, or more than an errno to judge. Prints what each one came to, as JSON.

``python scenarios.py DIRECTORY`` runs every scenario in an empty directory of whoever starts it. A scenario is a
function of a :class:`Stage`; it returns plain data, and the tests say what that has to be.
"""

# ruff: noqa: E501 - the attacks are programs in one string

import asyncio
import json
import os
import re
import secrets
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from survivors import descendants, of_a_call

from handrail import AlwaysApprove, Capability, ToolExecutor, ToolOutcome, ToolRegistry
from handrail.builtins.bash import bash_plugin
from handrail.errors import PathEscape
from handrail.inline import InlineTool, InlineToolExecutor, InlineToolResult, SkillContext
from handrail.sandbox.bodies import Cells
from handrail.sandbox.supervisor import Supervisor
from handrail.workspace import Workspace
from handrail_cell.wire import Limits

MEGABYTE = 1 << 20
SMALL = Limits(
    wall_s=20,
    cpu_s=10,
    memory_bytes=128 * MEGABYTE,
    processes=32,
    disk_bytes=32 * MEGABYTE,
    file_bytes=16 * MEGABYTE,
    open_files=64,
    output_bytes=64 * 1024,
)
SCENARIOS: dict[str, Callable[["Stage"], Any]] = {}


def scenario(function: Callable[["Stage"], Any]) -> Callable[["Stage"], Any]:
    SCENARIOS[function.__name__] = function
    return function


class Stage:
    """A workspace, and two ways to run something in it."""

    def __init__(self, directory: Path, supervisor: Supervisor) -> None:
        self.directory = directory
        self.supervisor = supervisor
        self.workspace = Path(tempfile.mkdtemp(dir=directory))

    def inline(
        self,
        code: str,
        *,
        wall: float = 20.0,
        may_exec: bool = False,
        writes: bool = False,
        limits: Limits = SMALL,
        **data: Any,
    ) -> InlineToolResult:
        executor = InlineToolExecutor(wall, limits.output_bytes, supervisor=self.supervisor)
        capability = Capability(exec=may_exec, writes=writes)
        with SkillContext(self.workspace) as context:
            return executor.execute(
                InlineTool(name="attack", code=code, capability=capability, limits=limits.with_(wall_s=wall)),
                context,
                data,
            )

    def bash(self, command: str, *, timeout: float = 20.0, limits: Limits = SMALL, **options: Any) -> ToolOutcome:
        registry = ToolRegistry()
        registry.register_plugin(bash_plugin(Cells(self.supervisor, direct_writes=True), limits=limits))
        with ToolExecutor(registry, workspace=self.workspace, approver=AlwaysApprove()) as executor:
            return asyncio.run(executor.execute("bash", {"command": command, "timeout": timeout, **options}))

    def survivors(self) -> int:
        """Processes of calls that are still there half a second after the last one ended."""
        deadline = time.monotonic() + 0.5
        while (count := len(of_a_call(os.getpid()))) and time.monotonic() < deadline:
            os.sched_yield()
        return count


def brief(result: InlineToolResult | ToolOutcome) -> dict[str, Any]:
    """The parts of a result that the tests judge."""
    if isinstance(result, ToolOutcome):
        return {"ok": result.succeeded, "reason": result.reason, "limit": result.limit, "text": result.text[-4000:]}
    return {
        "ok": result.success,
        "error": result.error_message,
        "limit": result.limit,
        "value": result.value,
        "truncated": result.truncated,
        "output": result.output[-2000:],
        "ms": result.duration_ms,
    }


# ── bombs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
def fork_bomb_in_a_shell(stage: Stage) -> Any:
    outcome = stage.bash("bomb() { bomb | bomb & }; bomb; sleep 30", timeout=2)
    return {**brief(outcome), "survivors": stage.survivors()}


@scenario
def fork_bomb_in_python(stage: Stage) -> Any:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = stage.inline(code, wall=2, may_exec=True)
    return {**brief(result), "survivors": stage.survivors()}


@scenario
def fork_bomb_where_no_process_may_start(stage: Stage) -> Any:
    return brief(stage.inline("import os\nos.fork()"))


@scenario
def a_neighbour_forks_while_one_bombs(stage: Stage) -> Any:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    calm = (
        "import os, time\nmade = 0\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end:\n"
        "    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)\n    made += 1\nresult = made"
    )
    with ThreadPoolExecutor(2) as pool:
        bombing = pool.submit(stage.inline, bomb, wall=3, may_exec=True)
        forking = pool.submit(stage.inline, calm, wall=15, may_exec=True)
        return {"bomb": brief(bombing.result()), "calm": brief(forking.result())}


@scenario
def thread_bomb(stage: Stage) -> Any:
    code = (
        "import threading\nthreads = []\nfor _ in range(10_000):\n"
        "    thread = threading.Thread(target=threading.Event().wait, daemon=True)\n    thread.start()\n    threads.append(thread)"
    )
    return brief(stage.inline(code, wall=10))


@scenario
def memory_bomb(stage: Stage) -> Any:
    return brief(stage.inline("held = []\nwhile True: held.append(bytearray(1 << 20))"))


@scenario
def shared_memory_bomb(stage: Stage) -> Any:
    code = (
        "import mmap\nheld = []\nwhile True:\n    piece = mmap.mmap(-1, 8 << 20)\n"
        "    piece.write(b'x' * (8 << 20))\n    held.append(piece)"
    )
    return brief(stage.inline(code))


@scenario
def memory_bomb_of_many_processes(stage: Stage) -> Any:
    code = (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        held = bytearray(b'x') * (60 << 20)\n        time.sleep(30)\n        os._exit(0)\ntime.sleep(30)"
    )
    return {**brief(stage.inline(code, wall=8, may_exec=True)), "survivors": stage.survivors()}


@scenario
def disk_bomb_in_tmp(stage: Stage) -> Any:
    code = "number = 0\nwhile True:\n    number += 1\n    with open(f'/tmp/{number}', 'wb') as file: file.write(bytes(1 << 20))"
    return brief(stage.inline(code))


@scenario
def disk_bomb_in_dev_shm(stage: Stage) -> Any:
    code = "number = 0\nwhile True:\n    number += 1\n    with open(f'/dev/shm/{number}', 'wb') as file: file.write(bytes(1 << 20))"
    return brief(stage.inline(code))


@scenario
def disk_bomb_of_many_files(stage: Stage) -> Any:
    code = "for number in range(1_000_000):\n    open(f'/tmp/{number}', 'w').close()"
    return brief(stage.inline(code))


@scenario
def disk_bomb_of_one_file(stage: Stage) -> Any:
    code = "with open('/tmp/big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))"
    return brief(stage.inline(code))


@scenario
def disk_bomb_with_a_hole(stage: Stage) -> Any:
    return brief(stage.inline("open('/tmp/sparse', 'wb').truncate(1 << 40)"))


@scenario
def descriptor_bomb(stage: Stage) -> Any:
    return brief(stage.inline("held = []\nwhile True: held.append(open('/dev/null'))"))


@scenario
def processor_hog(stage: Stage) -> Any:
    return brief(stage.inline("while True: pass", limits=SMALL.with_(cpu_s=1)))


@scenario
def output_flood(stage: Stage) -> Any:
    def resident() -> int:
        return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024

    stage.inline("print('x')")
    before = resident()
    results = [
        brief(stage.inline(f"import sys\nwhile True: sys.{name}.write('x' * 10**6)")) for name in ("stdout", "stderr")
    ]
    zeros = brief(stage.inline("import os\nwhile True: os.write(1, bytes(10**6))"))
    return {"floods": [*results, zeros], "grown": resident() - before}


# ── lifetimes ────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
def ignores_every_signal(stage: Stage) -> Any:
    code = (
        "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    )
    return {**brief(stage.inline(code, wall=1.5)), "survivors": stage.survivors()}


@scenario
def a_shell_ignores_every_signal(stage: Stage) -> Any:
    outcome = stage.bash("trap '' TERM HUP INT QUIT; while :; do sleep 1; done", timeout=1.5)
    return {**brief(outcome), "survivors": stage.survivors()}


@scenario
def daemons_of_a_shell(stage: Stage) -> Any:
    outcome = stage.bash(
        "setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & (trap '' TERM HUP; sleep 1000) & "
        "( ( sleep 1000 & ) & ) ; disown -a; echo started"
    )
    return {**brief(outcome), "survivors": stage.survivors()}


@scenario
def daemons_of_python(stage: Stage) -> Any:
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        for fd in range(3): os.close(fd)\n        time.sleep(1000)\n    os._exit(0)\nos.wait()\nresult = 'done'"
    )
    return {**brief(stage.inline(code, may_exec=True)), "survivors": stage.survivors()}


@scenario
def background_jobs_and_pipes_work(stage: Stage) -> Any:
    return brief(stage.bash("sleep 0.1 & printf 'b\\na\\n' | sort | tr '\\n' ' '; wait; echo done"))


@scenario
def keeps_running_after_the_last_line(stage: Stage) -> Any:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nresult = 1"
    return {**brief(stage.inline(code, wall=1.5)), "survivors": stage.survivors()}


# ── ends of all kinds ────────────────────────────────────────────────────────────────────────────────────────────


@scenario
def ends_of_all_kinds(stage: Stage) -> Any:
    codes = {
        "segmentation_fault": "import ctypes\nctypes.string_at(0)",
        "abort": "import os\nos.abort()",
        "deep_recursion": "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x",
        "exit_3": "import sys\nsys.exit(3)",
        "exit_text": "import sys\nsys.exit('no')",
        "exit_at_once": "import os\nos._exit(0)",
        "exit_at_once_with_result": "import os\nresult = 'never seen'\nos._exit(4)",
        "evil_exception": "class E(Exception):\n    def __str__(self): raise self\nraise E()",
        "base_exception": "raise BaseException('x')",
        "result_is_no_json": "result = object()",
        "result_is_nan": "result = float('nan')",
        "bad_syntax": "def (:",
    }
    return {name: brief(stage.inline(code)) for name, code in codes.items()}


@scenario
def another_architecture(stage: Stage) -> Any:
    """The x32 range, and the 32-bit gate: each would reach calls that the filter knows under another number."""
    codes = {
        "x32": "import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 39)\nresult = 'alive'",
        "int80": (
            "import ctypes, mmap\ncode = bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3])\n"
            "page = mmap.mmap(-1, 4096, prot=7)\npage.write(code)\n"
            "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
            "ctypes.CFUNCTYPE(ctypes.c_int)(address)()\nresult = 'alive'"
        ),
    }
    return {name: brief(stage.inline(code)) for name, code in codes.items()}


# ── forged results ───────────────────────────────────────────────────────────────────────────────────────────────

FORGED = """
import json, os, struct
body = json.dumps("forged").encode()
frames = [struct.pack("=II", kind, len(body)) + body for kind in (1, 2, 3)] + [struct.pack("=cI", b"C", 0), b"endd" + bytes(28)]
for fd in range(3, 1024):
    for frame in frames:
        try: os.write(fd, frame)
        except OSError: pass
maps = [line.split()[0].split("-") for line in open("/proc/self/maps") if "rw-s" in line]
import ctypes
for first, _ in maps:
    ctypes.memmove(int(first, 16), frames[0], len(frames[0]))
found = len(maps)
"""


@scenario
def forges_a_result(stage: Stage) -> Any:
    endings = {
        "then_fails": "import os\nos._exit(7)",
        "then_crashes": "ctypes.string_at(0)",
        "then_succeeds": "os._exit(0)",
        "then_goes_on": "result = 'true'",
    }
    return {name: brief(stage.inline(FORGED + ending)) for name, ending in endings.items()}


@scenario
def forges_a_result_in_a_shell(stage: Stage) -> Any:
    (stage.workspace / "forge.py").write_text(FORGED + "os._exit(7)")
    forged = stage.bash(f"'{sys.executable}' forge.py")
    hidden = stage.bash(
        "for fd in /proc/self/fd/*; do printf 'endd\\0\\0\\0\\0' >$fd; done 2>/dev/null; exec sh -c 'exit 9'"
    )
    killed = stage.bash("kill -KILL $$")
    init = stage.bash("kill -KILL 1; kill -TERM 1; echo alive; exit 5")
    return {"forged": brief(forged), "hidden": brief(hidden), "killed": brief(killed), "init": brief(init)}


# ── leaks between calls ──────────────────────────────────────────────────────────────────────────────────────────

SCAN = r"""
import ctypes, os, re
pattern = re.compile(rb"HANDRAIL-[A-Z]{3}-[0-9a-f]{32}")
libc = ctypes.CDLL(None)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
found, pages = set(), 0
for line in open("/proc/self/maps").read().splitlines():
    words = line.split()
    if "r" not in words[1] or "/" in words[-1]:
        continue
    first, last = (int(part, 16) for part in words[0].split("-"))
    for at in range(first, last, 1 << 20):
        size = min(1 << 20, last - at)
        fd = os.open("/tmp/copy", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if libc.write(fd, at, size) > 0:  # a copy by the kernel: a hole in memory is an errno, not a crash
            found.update(pattern.findall(os.pread(fd, size, 0)))
            pages += size >> 12
        os.close(fd)
result = {"found": sorted(piece.decode() for piece in found), "pages": pages}
"""


@scenario
def searches_its_memory_for_an_earlier_call(stage: Stage) -> Any:
    secret, own = f"HANDRAIL-OLD-{secrets.token_hex(16)}", f"HANDRAIL-NEW-{secrets.token_hex(16)}"
    for _ in range(3):
        stage.inline(f"kept = '{secret}'\nprint(kept)\nresult = input_data", data=secret)
    results = [brief(stage.inline(SCAN, data=own)) for _ in range(2)]
    return {"secret": secret, "own": own, "found": [result["value"] for result in results], "results": results}


@scenario
def two_calls_draw_different_lots(stage: Stage) -> Any:
    code = (
        "import os, random, secrets, tempfile, uuid\n"
        "result = [random.random(), random.getrandbits(64), os.urandom(8).hex(), secrets.token_hex(8), str(uuid.uuid4()),"
        " tempfile.mktemp()]"
    )
    first, second = stage.inline(code), stage.inline(code)
    return [first.value, second.value]


LEAVE = """
import contextlib, os, socket, ctypes, fcntl
token = input_data["token"]
left = []
def attempt(name, work):
    try:
        work()
    except OSError:
        return
    left.append(name)
def write(path):
    with open(path, "w") as file: file.write(token)
attempt("tmp", lambda: write("/tmp/covert"))
attempt("shm", lambda: write("/dev/shm/covert"))
attempt("root", lambda: write("/covert"))
attempt("run", lambda: write("/run/covert"))
attempt("workspace", lambda: write(input_data["place"] + "/covert"))
attempt("home", lambda: write(os.path.expanduser("~/covert")))
attempt("hostname", lambda: socket.sethostname(token[:8]))
attempt("umask", lambda: None if os.umask(0o77) else None)
attempt("times", lambda: os.utime(os.__file__, (1, 1)))
attempt("lock", lambda: fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))
result = left
"""

FIND = """
import os, socket, fcntl
found = []
for name, path in (("tmp", "/tmp/covert"), ("shm", "/dev/shm/covert"), ("root", "/covert"), ("run", "/run/covert"),
                   ("workspace", input_data["place"] + "/covert"), ("home", os.path.expanduser("~/covert"))):
    if os.path.exists(path): found.append(name)
if socket.gethostname() != "cell": found.append("hostname")
if os.stat(os.__file__).st_mtime == 1: found.append("times")
if os.umask(0o22) != 0o22: found.append("umask")
try: fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: found.append("lock")
result = found
"""


@scenario
def leaves_a_token_for_the_next_call(stage: Stage) -> Any:
    place = str(stage.workspace)
    left = stage.inline(LEAVE, token=secrets.token_hex(8), place=place)
    return {"left": brief(left), "found": brief(stage.inline(FIND, place=place))}


# ── races ────────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
def swaps_a_directory_for_a_link_while_the_host_opens_files_in_it(stage: Stage) -> Any:
    outside = stage.directory / f"outside-{secrets.token_hex(4)}"
    outside.mkdir()
    (outside / "file").write_text("OUTSIDE")
    flip = (
        "import os, time\nos.mkdir('inner')\nopen('inner/file', 'w').write('INSIDE')\n"
        "os.symlink(input_data['target'], 'link')\nopen('go', 'w').close()\nend = time.monotonic() + 2\nturns = 0\n"
        "while time.monotonic() < end:\n    os.rename('inner', 'door'); os.rename('door', 'inner')\n"
        "    os.rename('link', 'door'); os.rename('door', 'link')\n    turns += 1\nresult = turns"
    )
    seen: dict[str, int] = {}
    with ThreadPoolExecutor(1) as pool, Workspace(stage.workspace) as workspace:
        flipping = pool.submit(stage.inline, flip, writes=True, target=str(outside))
        while not flipping.done():
            try:
                fd = workspace.open("door/file")
            except PathEscape:
                word = "refused"
            except OSError as error:
                word = type(error).__name__
            else:
                with os.fdopen(fd) as file:
                    word = file.read()
            seen[word] = seen.get(word, 0) + 1
        return {"seen": seen, "turns": brief(flipping.result())}


@scenario
def starts_a_shell_behind_a_link_that_leads_outside(stage: Stage) -> Any:
    (stage.workspace / "out").symlink_to("/etc")
    places = {"link": "out", "root": "/", "upwards": "../..", "inside": "."}
    return {name: brief(stage.bash("pwd", cwd=place)) for name, place in places.items()}


def main() -> None:
    directory = Path(sys.argv[1])
    wanted = sys.argv[2:] or list(SCENARIOS)
    found: dict[str, Any] = {}
    with Supervisor() as supervisor:
        for name in wanted:
            try:
                started = time.monotonic()
                found[name] = SCENARIOS[name](Stage(directory, supervisor))
                if os.environ.get("HANDRAIL_TIMES"):
                    print(f"{time.monotonic() - started:6.2f} {name}", file=sys.stderr)
            except BaseException:
                found[name] = {"raised": traceback.format_exc()}
        left = [pid for pid in descendants(os.getpid()) if pid in of_a_call(os.getpid())]
    found["left_at_the_end"] = left
    found["threads"] = threading.active_count()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
