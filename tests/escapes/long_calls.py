"""A host with two calls in progress, one with daemons. Prints the id of a plain process that its parent
kills when the host has ended, and waits for that end."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from survivors import of_a_call

from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import InlineCode, ShellCommand, Supervisor

IGNORES = (
    "import signal\nfor n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\nimport os\nos.fork()\nwhile True: pass"
)
DAEMONS = "trap '' TERM HUP; setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & sleep 1000"

supervisor = Supervisor()
profile = SandboxProfile(workspace=str(Path(sys.argv[1])), access="read", exec=True)
for program in (InlineCode(IGNORES), ShellCommand(("/bin/sh", "-c", DAEMONS))):
    threading.Thread(target=supervisor.run_sync, args=(program, profile), daemon=True).start()
deadline = time.monotonic() + 20
while len(of_a_call(os.getpid())) < 4 and time.monotonic() < deadline:
    os.sched_yield()
PAIR = (
    "import os, sys, time\npid = os.fork()\nwhile pid == 0: time.sleep(1000)\n"
    "print(pid, flush=True)\nsys.stdin.read()\nos.kill(pid, 9)\nos.wait()"
)
plain = subprocess.Popen([sys.executable, "-I", "-S", "-c", PAIR], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert plain.stdout is not None
print(plain.stdout.readline().decode(), end="", flush=True)
threading.Event().wait()
