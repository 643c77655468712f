"""One cell at a time: what it says, what it may do, and how it ends."""

import os
import signal
import tempfile

import anyio
import pytest

from handrail.errors import SandboxUnavailable
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import CellResult, InlineCode, ShellCommand, Supervisor
from handrail.tool import Signal
from handrail_cell.wire import Limits

pytestmark = pytest.mark.walls


@pytest.fixture(scope="module")
def supervisor():
    with Supervisor() as keeper:
        yield keeper


def inline(supervisor: Supervisor, source: str, *, limits: Limits | None = None, **profile) -> CellResult:
    return supervisor.run_sync(
        InlineCode(source, "tool.py", b'{"n": 2}'), SandboxProfile(limits=limits or Limits(), **profile)
    )


def shell(supervisor: Supervisor, text: str, *, limits: Limits | None = None, **profile) -> CellResult:
    profile.setdefault("exec", True)
    return supervisor.run_sync(
        ShellCommand(("/bin/bash", "-c", text)), SandboxProfile(limits=limits or Limits(), **profile)
    )


def test_inline_code_sees_its_input_and_leaves_a_value_and_its_output_in_order(supervisor):
    result = inline(
        supervisor,
        "import sys\nfor i in range(3):\n    print(i)\n    sys.stderr.write(f'e {i}\\n')\n"
        "result = 21 * input_data['n']",
    )
    assert (result.exit_code, result.value, result.limit) == (0, b"42", None)
    assert result.output == b"0\ne 0\n1\ne 1\n2\ne 2\n"


def test_a_traceback_shows_the_tools_own_lines_under_its_name(supervisor):
    result = inline(supervisor, "def f():\n    return 1 / 0\nf()")
    assert result.exit_code == 1
    assert 'File "tool.py", line 3' in result.error
    assert "return 1 / 0" in result.error
    assert "runner.py" not in result.error


@pytest.mark.parametrize(
    ("source", "code", "killed_by"),
    [
        ("import sys; sys.exit(7)", 7, None),
        ("import os; os._exit(9)", 9, None),
        ("import ctypes; ctypes.string_at(0)", None, signal.SIGSEGV),
    ],
)
def test_the_status_is_what_the_kernel_says(supervisor, source, code, killed_by):
    result = inline(supervisor, source)
    assert (result.exit_code, result.signal) == (code, killed_by)


@pytest.mark.promise("cell:limits:each-names-itself")
@pytest.mark.parametrize(
    ("source", "limits", "name"),
    [
        ("while True: pass", Limits(wall_s=0.3), "wall"),
        ("while True: pass", Limits(cpu_s=1), "cpu"),
        ("x = bytearray(1 << 40)", Limits(), "memory"),
        ("f = open('/tmp/a', 'wb')\nwhile True: f.write(bytes(1 << 20))", Limits(disk_bytes=1 << 23), "disk"),
        ("f = open('/tmp/a', 'wb')\nwhile True: f.write(bytes(1 << 20))", Limits(file_bytes=1 << 23), "file_size"),
        ("k = [open('/dev/null') for _ in range(1000)]", Limits(), "open_files"),
        ("import threading, time\nfor _ in range(99): threading.Thread(target=time.sleep, args=(9,)).start()",
         Limits(processes=8, wall_s=20), "processes"),
        ("while True: print('x' * 100000)", Limits(output_bytes=4096), "output"),
    ],
)  # fmt: skip
def test_every_limit_is_named_when_it_is_met(supervisor, source, limits, name):
    result = inline(supervisor, source, limits=limits)
    assert result.limit == name
    assert not result.succeeded
    assert len(result.output) <= limits.output_bytes


@pytest.mark.parametrize("access", ["read", "write", "stage"])
def test_the_workspace_is_at_its_own_path_and_as_writable_as_granted(supervisor, tmp_path, access):
    (tmp_path / "old").write_text("old")
    result = shell(supervisor, "pwd; cat old; echo new > new", workspace=str(tmp_path), access=access)
    assert result.output.startswith(f"{tmp_path}\nold".encode())
    assert (result.exit_code == 0) == (access != "read")
    assert (tmp_path / "new").exists() == (access == "write")
    if access == "write":
        assert (tmp_path / "new").stat().st_uid == os.getuid()
    if access == "stage":
        with result.staged as layer:
            assert os.listdir(layer.upper_fd) == ["new"]


@pytest.mark.promise("cell:kill:nothing-survives-the-call")
def test_what_a_command_leaves_running_is_gone_when_it_ends(supervisor, tmp_path):
    text = f"trap '' TERM; nohup setsid sleep {NAP} & (setsid sleep {NAP} &); echo $$ > pid; exit 3"
    result = shell(supervisor, text, workspace=str(tmp_path), access="write")
    assert result.exit_code == 3
    assert not _sleepers()


@pytest.mark.promise("cell:kill:nothing-survives-the-call")
def test_what_a_command_left_running_writes_nothing_more_once_the_call_has_ended(supervisor, tmp_path):
    text = (
        "for i in $(seq 12); do (while :; do echo x >> log$i; done) & done; "
        "until [ -s log1 ] && [ -s log12 ]; do :; done; exit 3"
    )
    for _ in range(2):
        result = shell(supervisor, text, workspace=str(tmp_path), access="write", limits=Limits(processes=64))
        at_once = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
        with Supervisor() as another:  # long enough for anything that still ran to write
            inline(another, "pass")
        later = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
        assert result.exit_code == 3
        assert at_once == later


NAP = 100_000 + os.getpid()  # tells our sleepers from those of a test that runs beside this one


def _sleepers() -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if file.read() == f"sleep\0{NAP}\0".encode():
                        found.append(name)
            except OSError:
                continue
    return found


def test_memory_is_counted_over_all_processes_of_a_command(supervisor):
    text = "for i in 1 2 3 4; do python3 -c 'x = bytearray(60 << 20); import time; time.sleep(30)' & done; wait"
    result = shell(supervisor, text, limits=Limits(memory_bytes=150 << 20, wall_s=25))
    assert result.limit == "memory"


def test_processor_time_is_counted_over_all_processes_of_a_command(supervisor):
    text = "for i in 1 2 3 4; do (while :; do :; done) & done; wait"
    result = shell(supervisor, text, limits=Limits(cpu_s=1.0, wall_s=25))
    assert result.limit == "cpu"


def test_a_cancelled_call_is_dead_before_the_task_goes_on(supervisor, tmp_path):
    async def main():
        profile = SandboxProfile(exec=True, workspace=str(tmp_path), access="write")
        started = anyio.Event()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def call():
                    command = ShellCommand(("/bin/sh", "-c", f"echo up; sleep {NAP}"))
                    await supervisor.run(command, profile, on_output=lambda _: started.set())

                group.start_soon(call)
                await started.wait()
                scope.cancel()
        assert not _sleepers()

    anyio.run(main)


def test_a_signal_cancels_a_call_and_the_result_says_so(supervisor):
    cancel = Signal()
    code = InlineCode("print('up')\nwhile True: pass")
    result = supervisor.run_sync(code, SandboxProfile(), on_output=lambda _: cancel.set("stop"), cancel=cancel)
    assert result.cancelled
    assert result.signal == signal.SIGKILL
    assert result.output == b"up\n"


def test_a_long_lived_program_has_pipes_of_its_own(supervisor):
    with supervisor.spawn(ShellCommand(("/bin/cat",)), SandboxProfile(exec=True)) as process:
        os.write(process.stdin, b"hello\n")
        assert os.read(process.stdout, 100) == b"hello\n"
        os.close(process.stdin)
        process.stdin = -1
        assert process.wait(10) == (0, None)
    with supervisor.spawn(ShellCommand(("/bin/cat",)), SandboxProfile(exec=True)) as process:
        process.kill()
        assert process.wait(10)[1] == signal.SIGKILL


def test_a_large_input_arrives_whole(supervisor):
    data = b'"' + b"x" * 3_000_000 + b'"'
    result = supervisor.run_sync(InlineCode("result = len(input_data)", "t", data), SandboxProfile())
    assert result.value == b"3000000"


def test_many_calls_at_once_from_threads_and_tasks_do_not_meet(supervisor):
    async def main():
        results = {}

        async def call(n):
            results[n] = await supervisor.run(InlineCode(f"result = {n}"), SandboxProfile())

        async with anyio.create_task_group() as group:
            for n in range(24):
                group.start_soon(call, n)
        assert {n: item.value for n, item in results.items()} == {n: str(n).encode() for n in range(24)}

    anyio.run(main)


def test_a_workspace_in_shared_memory_is_at_its_path(supervisor):
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="workspace-") as place:
        code = InlineCode(f"open({place!r} + '/new', 'w').write('x'); open('here', 'w').write('y')")
        result = supervisor.run_sync(code, SandboxProfile(workspace=place, access="write"))
        assert result.succeeded, result.error
        assert sorted(os.listdir(place)) == ["here", "new"]


def test_a_file_system_that_takes_no_id_map_is_refused_in_words_that_help_or_needs_none(supervisor):
    profile = SandboxProfile(workspace="/sys/kernel", access="read")
    if os.geteuid() == 0:
        with pytest.raises(SandboxUnavailable, match="start the host as the user who owns the workspace"):
            supervisor.run_sync(InlineCode("1"), profile)
    else:  # an ordinary user's cell has that user's own identity, and maps nothing
        seen = supervisor.run_sync(InlineCode("import os; result = os.getcwd()"), profile)
        assert seen.value == b'"/sys/kernel"', seen.error
