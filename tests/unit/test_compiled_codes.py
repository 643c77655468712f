"""A tool's code is compiled once, in a cell that runs nothing of it, and every call still runs what its source says."""

import json
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.sandbox import compiled
from handrail.sandbox.compiled import MOST_BYTES, MOST_KEPT, CompiledCodes
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import CellResult, InlineCode, Supervisor

PROFILE = SandboxProfile()
LOADED = "import sys\nresult = bool(sys._getframe(1).f_locals['compiled'])\n"
"""Says of itself whether its cell was given compiled code."""


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_time_to_compile_at_the_second_call_and_never_again():
    codes, code = CompiledCodes(), InlineCode("1", "one.py")
    assert [codes.called(code) for _ in range(5)] == [False, True, False, False, False]
    assert codes.find(code) == b""
    codes.keep(code, b"code")
    assert codes.find(code) == b"code"
    assert not codes.called(code)


def test_the_same_source_under_another_name_is_another_code_and_the_input_is_none_of_it():
    codes = CompiledCodes()
    codes.keep(InlineCode("1", "one.py", b"1"), b"code")
    assert codes.find(InlineCode("1", "one.py", b"2")) == b"code"
    assert codes.find(InlineCode("1", "two.py", b"1")) == b""
    assert codes.find(InlineCode("2", "one.py", b"1")) == b""


def test_a_very_large_source_is_never_kept():
    codes, large = CompiledCodes(), InlineCode("#" * (MOST_BYTES // 16 + 1))
    assert [codes.called(large) for _ in range(3)] == [False, False, False]


@given(st.lists(st.tuples(st.integers(0, 2 * MOST_KEPT), st.integers(0, 5), st.booleans()), max_size=200))
def test_never_more_is_kept_than_allowed_and_nothing_under_a_wrong_name(steps):
    codes, size = CompiledCodes(), MOST_BYTES // 8
    for number, eighths, calls in steps:
        code = InlineCode(str(number))
        if calls:
            codes.called(code)
        else:
            codes.keep(code, _marked(number, eighths * size))
        kept = [codes.find(InlineCode(str(other))) for other in range(2 * MOST_KEPT + 1)]
        assert sum(map(len, kept)) <= MOST_BYTES + MOST_KEPT
        assert sum(map(bool, kept)) <= MOST_KEPT
        assert all(found in (b"", _marked(other, len(found))) for other, found in enumerate(kept))


def _marked(number: int, size: int) -> bytes:
    return bytes([number % 251]) * size


# ── in cells ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def supervisor():
    with Supervisor() as keeper:
        yield keeper


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.01)
    return True


def calls(supervisor: Supervisor, program: InlineCode, profile: SandboxProfile = PROFILE) -> list[CellResult]:
    """Enough of them for the code to be compiled, each when nothing else is being done."""
    results: list[CellResult] = []
    for _ in range(4):
        results.append(supervisor.run_sync(program, profile))
        assert eventually(lambda: supervisor.idle(profile))
    return results


@pytest.mark.walls
@pytest.mark.promise("cell:code:compiled-once")
def test_the_third_call_gets_code_that_a_cell_compiled_meanwhile(supervisor):
    values = [json.loads(result.value or b"null") for result in calls(supervisor, InlineCode(LOADED))]
    assert values == [False, False, True, True]


@pytest.mark.walls
def test_a_cell_with_a_workspace_gets_it_too(supervisor, tmp_path):
    profile = SandboxProfile(workspace=str(tmp_path), access="read")
    values = [result.value for result in calls(supervisor, InlineCode(LOADED, "beside.py"), profile)]
    assert values == [b"false", b"false", b"true", b"true"]


@pytest.mark.walls
@pytest.mark.promise("cell:code:a-compiling-cell-runs-nothing")
def test_what_a_call_leaves_or_changes_is_in_no_later_calls_code(supervisor):
    code = (
        "import sys, marshal\n"
        "results = sys._getframe(1).f_locals['results']\n"
        "from handrail_cell import frames, runner\n"
        "print('honest')\n"
        "forged = marshal.dumps(compile('print(\"forged\")', '<tool>', 'exec'))\n"
        "runner.compile_inline = lambda *_: results.leave(frames.CODE, forged)\n"
        "results.leave(frames.CODE, forged)\n"
    )
    assert [result.output for result in calls(supervisor, InlineCode(code))] == [b"honest\n"] * 4
    # The control: the memory that it wrote to is the one that the host reads.
    value = code.replace("results.leave(frames.CODE, forged)", "results.leave(frames.VALUE, b'1')")
    assert [result.value for result in calls(supervisor, InlineCode(value))] == [b"1"] * 4


@pytest.mark.walls
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f():\n    1/0\nf()", 'File "tool.py", line 2, in f\n    1/0\n'),
        ("def (", 'File "tool.py", line 1\n    def (\n'),
        ("x = 1\nassert (x, 'y')\nprint('\\d')", "tool.py:2: SyntaxWarning"),
        ("x = " + "(" * 300, "too many nested parentheses"),
        ("x = '\ud800'", "UnicodeDecodeError"),
        ("\0", "null bytes"),
    ],
    ids=["error", "syntax", "warning", "nesting", "surrogate", "null"],
)
def test_each_call_hears_the_same(supervisor, source, said):
    results = calls(supervisor, InlineCode(source, "tool.py"))
    heard = [(result.exit_code, result.output, result.error) for result in results]
    assert heard == [heard[0]] * 4
    assert said in (results[0].error or results[0].output.decode())
    assert "handrail_cell" not in (results[0].error or "")


@pytest.mark.walls
def test_code_that_a_cell_cannot_compile_is_tried_in_one_further_cell_and_then_left(supervisor, monkeypatch):
    monkeypatch.setattr(compiled, "MOST_BYTES", 64 * 1024 * 1024)
    many = InlineCode("\n".join(f"x{n} = {n}, '{n}' * 2" for n in range(120_000)))  # its code is larger than a result
    results = calls(supervisor, many)
    assert [result.exit_code for result in results] == [0] * 4


@pytest.mark.walls
def test_a_supervisor_that_is_closed_while_a_cell_compiles_leaves_no_thread():
    slow = InlineCode("\n".join(f"def f{n}(): return {n}" for n in range(20_000)))
    with Supervisor() as closing:
        for _ in range(2):
            closing.run_sync(slow, PROFILE)
    assert not [thread for thread in threading.enumerate() if thread.name == "handrail-compile"]
