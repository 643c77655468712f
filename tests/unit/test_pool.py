"""How many cells wait, which parents stay, and what happens to a call whose parked cell has died meanwhile."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.errors import SandboxError
from handrail.sandbox import pool
from handrail.sandbox.pool import REST_S, Target, to_let_go
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import CellResult, InlineCode, ShellCommand, Supervisor
from handrail_cell.wire import Limits

PROFILE = SandboxProfile()
ANSWER = InlineCode("result = 42")


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 4), st.integers(0, 9), st.lists(st.tuples(st.booleans(), st.floats(0, 30)), max_size=30))
def test_as_many_are_wanted_as_load_and_rest_say_and_never_more_or_fewer_than_allowed(least, most, history):
    target = Target(least, most, 0.0)
    now, most = 0.0, max(least, most)
    for missed, later in history:
        before, now = target.at(now), now + later
        if missed:
            target.missed(now)
            assert target.wanted in (before, min(before + 1, most)) or target.wanted <= before
        else:
            assert target.at(now) <= before
        assert least <= target.at(now) <= most
    assert target.at(now + REST_S * (most + 1)) == least
    assert target.next_change() is None


def test_a_pool_of_none_stays_one_whatever_misses():
    target = Target(0, 0, 0.0)
    target.missed(1.0)
    assert target.at(1.0) == 0


@dataclass
class Parent:
    running: int
    used: float
    started: int = 0


def test_the_parents_that_were_not_used_for_longest_go_first_and_none_whose_calls_run(monkeypatch):
    monkeypatch.setattr(pool, "PARENTS_KEPT", 2)
    busy, old, newer, newest = Parent(1, 0.0), Parent(0, 1.0), Parent(0, 2.0), Parent(0, 3.0)
    assert to_let_go([newest, busy, old, newer], newest) == [old, newer]
    assert to_let_go([busy, newest], newest) == []
    assert to_let_go([busy, busy, busy, newest], newest) == []


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.01)
    return True


def keepers() -> set[int]:
    """The processes that keep warm parents for this one."""
    found = set()
    for child in psutil.Process().children():
        try:
            if any(word.endswith("zygote.py") for word in child.cmdline()):
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def answered(result: CellResult) -> bool:
    return result.value == b"42" and result.succeeded


@pytest.mark.walls
@pytest.mark.promise("cell:pool:grows-under-load-and-shrinks-when-idle")
def test_the_pool_grows_while_calls_find_none_waiting_and_shrinks_when_it_is_quiet(monkeypatch):
    with Supervisor(pool_size=1, pool_most=3) as supervisor:
        supervisor.warm(PROFILE)
        threads = [threading.Thread(target=supervisor.run_sync, args=(ANSWER, PROFILE)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert eventually(lambda: len(supervisor.parked(PROFILE)) == 3)
        assert eventually(lambda: supervisor.idle(PROFILE))
        monkeypatch.setattr(pool, "REST_S", 0.01)
        assert answered(supervisor.run_sync(ANSWER, PROFILE))  # the thread that sleeps is told
        assert eventually(lambda: len(supervisor.parked(PROFILE)) == 1)


@pytest.mark.walls
@pytest.mark.promise("cell:pool:a-dead-parked-cell-costs-no-call")
def test_a_call_whose_parked_cell_has_died_runs_in_another():
    with Supervisor(pool_size=2, pool_most=2) as supervisor:
        supervisor.warm(PROFILE)
        for cell in supervisor.parked(PROFILE):
            signal.pidfd_send_signal(cell.pidfd, signal.SIGKILL)
        assert answered(supervisor.run_sync(ANSWER, PROFILE))
        assert eventually(lambda: supervisor.idle(PROFILE))


@pytest.mark.walls
def test_cells_that_were_asked_for_together_all_come_and_hold_nothing_of_each_other():
    calls = 20  # more than are begun in one go
    before, results = keepers(), []
    look = InlineCode("import os\nresult = os.listdir('/proc/self/fd')")
    with Supervisor(pool_size=0) as supervisor:
        supervisor.warm(PROFILE)
        (keeper,) = keepers() - before
        (parent,) = psutil.Process(keeper).children()
        open_files = psutil.Process().num_fds()
        threads = [
            threading.Thread(target=lambda: results.append(supervisor.run_sync(look, PROFILE))) for _ in range(calls)
        ]
        parent.suspend()
        try:
            for thread in threads:
                thread.start()
            assert eventually(lambda: psutil.Process().num_fds() >= open_files + calls * 4)  # four for each cell
        finally:
            parent.resume()
        for thread in threads:
            thread.join()
    assert [result.value for result in results] == [b'["0", "1", "2", "3"]'] * calls  # 3 is the listing's own


@pytest.mark.walls
def test_a_call_whose_warm_parent_has_died_runs_in_a_new_one():
    before = keepers()
    with Supervisor(pool_size=2) as supervisor:
        supervisor.warm(PROFILE)
        (keeper,) = keepers() - before
        parked = select.poll()
        for cell in supervisor.parked(PROFILE):
            parked.register(cell.pidfd, select.POLLIN)
        psutil.Process(keeper).children()[0].kill()
        assert eventually(lambda: len(parked.poll(0)) == 2)  # the kernel ends them with their parent, a moment later
        assert answered(supervisor.run_sync(ANSWER, PROFILE))
        assert eventually(lambda: keeper not in keepers())
    assert keepers() == before


@pytest.mark.walls
@pytest.mark.promise("cell:pool:a-worn-parent-is-replaced")
def test_a_parent_that_has_forked_often_is_replaced_and_ends_when_its_last_program_does(monkeypatch):
    before = keepers()
    with Supervisor(pool_size=1, pool_most=1) as supervisor:
        programs = SandboxProfile(exec=True)
        process = supervisor.spawn(ShellCommand(("/bin/cat",)), programs)
        (first,) = keepers() - before
        monkeypatch.setattr(pool, "FORKS_EACH", 1)
        assert answered(supervisor.run_sync(ANSWER, programs))
        assert eventually(lambda: len(keepers() - before) > 1)
        monkeypatch.undo()
        assert answered(supervisor.run_sync(ANSWER, programs))
        os.write(process.stdin, b"still here")
        assert os.read(process.stdout, 64) == b"still here"
        assert first in keepers()
        process.close()
        assert eventually(lambda: first not in keepers())
    assert keepers() == before


@pytest.mark.walls
@pytest.mark.promise("cell:pool:an-end-in-the-middle-leaves-nothing")
def test_a_supervisor_that_is_closed_while_a_call_runs_leaves_no_descriptor():
    endless = InlineCode("print('begun', flush=True)\nwhile True: pass")
    before, begun = len(os.listdir("/proc/self/fd")), threading.Event()
    failures: list[BaseException] = []

    def call() -> None:
        try:
            supervisor.run_sync(endless, PROFILE, on_output=lambda _: begun.set())
        except SandboxError as error:
            failures.append(error)

    with Supervisor(pool_size=1) as supervisor:
        thread = threading.Thread(target=call)
        thread.start()
        assert begun.wait(60)
        assert len(os.listdir("/proc/self/fd")) > before
    thread.join()
    assert "warm parent ended while a call ran" in str(failures)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.walls
@pytest.mark.promise("cell:pool:unused-parents-are-let-go")
def test_parents_of_packages_that_nobody_uses_are_let_go(monkeypatch):
    monkeypatch.setattr(pool, "PARENTS_KEPT", 2)
    before = keepers()
    with Supervisor(pool_size=1, pool_most=1) as supervisor:
        for package in ("math", "json", "struct", "array"):
            assert answered(supervisor.run_sync(ANSWER, PROFILE.with_(preload=(package,))))
        assert eventually(lambda: len(keepers() - before) == 2)
        assert answered(supervisor.run_sync(ANSWER, PROFILE.with_(preload=("math",))))
    assert keepers() == before


@pytest.mark.walls
@pytest.mark.promise("cell:limits:the-clock-starts-when-the-cell-is-ready")
def test_a_calls_time_begins_when_its_cell_is_ready():
    before = keepers()
    with Supervisor(pool_size=0) as supervisor:
        assert answered(supervisor.run_sync(ANSWER, PROFILE))
        (keeper,) = keepers() - before
        parent = psutil.Process(keeper).children()[0]
        profile = PROFILE.with_(limits=Limits(wall_s=3.0))
        results: list[CellResult] = []
        call = threading.Thread(target=lambda: results.append(supervisor.run_sync(ANSWER, profile)))
        parent.suspend()
        call.start()
        call.join(4.0)
        assert call.is_alive()
        parent.resume()
        call.join()
        assert answered(results[0]), results
