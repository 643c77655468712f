"""Bombs, daemons, forgeries, leaks and races: what each scenario came to, as root and as an ordinary user."""

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escapes.survivors import descendants, of_a_call

HERE = Path(__file__).parent
HAND_OVERS = 3

pytestmark = pytest.mark.walls

A_BOMB_MEETS = ("wall", "memory", "processes")  # whichever comes first: many processes hold memory too
BOUNDED = {
    "memory_bomb": "memory",
    "shared_memory_bomb": "memory",
    "memory_bomb_of_many_processes": "memory",
    "thread_bomb": "processes",
    "disk_bomb_in_tmp": "disk",
    "disk_bomb_in_dev_shm": "disk",
    "disk_bomb_of_many_files": "disk",
    "disk_bomb_of_one_file": "file_size",
    "disk_bomb_with_a_hole": "file_size",
    "descriptor_bomb": "open_files",
    "processor_hog": "cpu",
    "ignores_every_signal": "wall",
    "a_shell_ignores_every_signal": "wall",
    "keeps_running_after_the_last_line": "wall",
}
LIVELY = (
    "fork_bomb_in_a_shell",
    "fork_bomb_in_python",
    "memory_bomb_of_many_processes",
    "ignores_every_signal",
    "a_shell_ignores_every_signal",
    "daemons_of_a_shell",
    "daemons_of_python",
    "keeps_running_after_the_last_line",
)


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_the_bomb_meets_its_limit(name: str, played: dict[str, Any]) -> None:
    result = played[name]
    assert result["ok"] is False
    assert result["limit"] == BOUNDED[name], result


@pytest.mark.parametrize("name", LIVELY)
def test_nothing_of_the_call_survives_it(name: str, played: dict[str, Any]) -> None:
    assert played[name]["survivors"] == 0


def test_nothing_of_any_call_is_left_when_the_host_is_done(played: dict[str, Any]) -> None:
    assert played["left_at_the_end"] == []


@pytest.mark.parametrize("name", ["fork_bomb_in_a_shell", "fork_bomb_in_python"])
def test_a_fork_bomb_meets_a_limit(name: str, played: dict[str, Any]) -> None:
    assert played[name]["ok"] is False
    assert played[name]["limit"] in A_BOMB_MEETS


def test_a_tool_without_exec_cannot_even_fork(played: dict[str, Any]) -> None:
    assert "PermissionError: [Errno 1]" in played["fork_bomb_where_no_process_may_start"]["error"]


def test_a_neighbour_forks_while_another_call_bombs(played: dict[str, Any]) -> None:
    found = played["a_neighbour_forks_while_one_bombs"]
    assert found["bomb"]["limit"] in A_BOMB_MEETS
    assert found["calm"]["ok"], found["calm"]
    assert found["calm"]["value"] >= 1


def test_a_flood_of_output_leaves_the_hosts_memory_flat(played: dict[str, Any]) -> None:
    found = played["output_flood"]
    for flood in found["floods"]:
        assert flood["limit"] == "output"
        assert flood["truncated"]
    assert found["grown"] < 2 << 20


def test_a_timeout_says_so_in_the_promised_words(played: dict[str, Any]) -> None:
    assert played["ignores_every_signal"]["error"] == "Execution timed out after 1.5s"
    assert played["a_shell_ignores_every_signal"]["text"].startswith("Execution timed out after 1.5s")


def test_daemons_and_background_jobs_do_not_hold_the_call(played: dict[str, Any]) -> None:
    assert played["daemons_of_a_shell"]["text"] == "started\n"
    assert played["daemons_of_python"]["value"] == "done"
    assert played["background_jobs_and_pipes_work"]["text"] == "a b done\n"


ENDS = {
    "segmentation_fault": "It was killed by signal 11.",
    "abort": "It was killed by signal",
    "deep_recursion": "",
    "exit_3": "Exit status 3.",
    "exit_text": "Exit status 1.",
    "exit_at_once_with_result": "Exit status 4.",
    "evil_exception": "E: <exception str() failed>",
    "base_exception": "BaseException: x",
    "result_is_no_json": "`result` is not JSON",
    "result_is_nan": "`result` is not JSON",
    "bad_syntax": "SyntaxError: invalid syntax",
}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_every_kind_of_end_is_told_truthfully(name: str, played: dict[str, Any]) -> None:
    result = played["ends_of_all_kinds"][name]
    assert result["ok"] is False
    assert result["value"] is None
    assert ENDS[name] in result["error"]


def test_an_exit_at_once_with_status_0_succeeded_without_a_result(played: dict[str, Any]) -> None:
    result = played["ends_of_all_kinds"]["exit_at_once"]
    assert (result["ok"], result["value"]) == (True, None)


@pytest.mark.parametrize("gate", ["x32", "int80"])
def test_another_architectures_gate_kills(gate: str, played: dict[str, Any]) -> None:
    assert played["another_architecture"][gate]["error"] == f"It was killed by signal {signal.SIGSYS.value}."


def test_a_forged_result_is_data_and_never_a_status(played: dict[str, Any]) -> None:
    found = played["forges_a_result"]
    assert found["then_fails"]["error"] == "Exit status 7."
    assert found["then_crashes"]["error"] == "It was killed by signal 11."
    assert (found["then_goes_on"]["ok"], found["then_goes_on"]["value"]) == (True, "true")
    assert found["then_succeeds"]["ok"]  # it did end with status 0; what it says it found is its own word
    assert all(found[name]["value"] is None for name in ("then_fails", "then_crashes"))


def test_a_shell_cannot_forge_its_exit_status(played: dict[str, Any]) -> None:
    found = played["forges_a_result_in_a_shell"]
    assert found["forged"]["text"].startswith("Exit status 7.")
    assert "Exit status 9." in found["hidden"]["text"]
    assert found["killed"]["reason"] == "crashed"
    assert "alive\nExit status 5." in found["init"]["text"]


def test_nothing_of_an_earlier_call_is_in_a_later_ones_memory(played: dict[str, Any]) -> None:
    scenario = played["searches_its_memory_for_an_earlier_call"]
    for scan in scenario["found"]:
        assert scan["pages"] > 500
        assert scan["found"] == [scenario["own"]]  # its own is found: the search works


def test_two_calls_draw_different_lots(played: dict[str, Any]) -> None:
    first, second = played["two_calls_draw_different_lots"]
    assert len(first) == len(second) == 6
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_no_place_carries_a_token_to_the_next_call(played: dict[str, Any]) -> None:
    scenario = played["leaves_a_token_for_the_next_call"]
    assert {"tmp", "shm"} <= set(scenario["left"]["value"])  # it could leave something, for itself
    assert not {"root", "run", "workspace", "hostname", "times"} & set(scenario["left"]["value"])
    assert scenario["found"]["value"] == []


def test_the_host_never_follows_a_link_that_is_swapped_in_while_it_opens(played: dict[str, Any]) -> None:
    scenario = played["swaps_a_directory_for_a_link_while_the_host_opens_files_in_it"]
    assert scenario["turns"]["value"] > 10
    assert "OUTSIDE" not in scenario["seen"]
    assert scenario["seen"]["INSIDE"] > 0
    assert scenario["seen"]["refused"] > 0


@pytest.mark.parametrize("place", ["link", "root", "upwards"])
def test_a_shell_starts_nowhere_outside_of_the_workspace(place: str, played: dict[str, Any]) -> None:
    found = played["starts_a_shell_behind_a_link_that_leads_outside"]
    assert found[place]["reason"] == "path_refused"
    assert found["inside"]["ok"]


def test_cells_die_with_their_host(attacker: Any) -> None:
    """SIGKILL, which no host can answer: its cells are gone within 100 ms.

    On a busy machine the plainest pair of processes, one that notices the host's end and kills the other, takes time
    too. Between a host and its cells' processes lie three such hand-overs, so three times the pair's time is granted.
    """
    took: list[float] = []
    while not took or (took[-1] >= 100 and len(took) < 5):
        took.append(milliseconds_to_the_end_of_the_cells(attacker))
    assert min(took) < 100, took


def milliseconds_to_the_end_of_the_cells(attacker: Any) -> float:
    with attacker.start(HERE / "long_calls.py", attacker.empty_directory()) as host:
        plain = int(host.stdout.readline())
        below = descendants(host.pid)
        cells = {pid for pid, seen in below.items() if len(seen.ids) >= 3}
        assert len(of_a_call(host.pid)) >= 3
        waiting = {os.pidfd_open(pid): pid for pid in below}
        ended = dict(moments_of_their_ends(host.pid, waiting))
        assert set(below) == set(ended), "something outlived its host by five seconds"
        return max(ended[pid] for pid in cells) - HAND_OVERS * ended[plain]


def moments_of_their_ends(host: int, waiting: dict[int, int]) -> Iterator[tuple[int, float]]:
    """Kill ``host``; yield each process as it ends, with the milliseconds since the kill."""
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    started = time.monotonic()
    os.kill(host, signal.SIGKILL)
    while waiting and (found := poll.poll(5000)):
        for fd, _ in found:
            poll.unregister(fd)
            os.close(fd)
            yield waiting.pop(fd), (time.monotonic() - started) * 1000
