"""Every attack of the battery, by name, through every entry, as root and as an ordinary user.

An attack that leaves no trace is first run outside, where it has to succeed: else its failure inside would prove
nothing. Where the wall is an errno, the errno is part of the promise: ``EPERM`` from the filter and ``ENOENT`` from a
root without the file are different walls.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.walls

ENTRIES = ("library", "inline", "skill", "bash", "command-line")
Expectation = str | Callable[[Any], bool]
NOTHING: Callable[[Any], bool] = lambda value: value == []  # noqa: E731 - read as a word below
NO: Callable[[Any], bool] = lambda value: value is False  # noqa: E731
REFUSED: Callable[[Any], bool] = lambda value: value == {"made": [], "errnos": ["EPERM"]}  # noqa: E731

EXPECTED: dict[str, Expectation] = {
    # host files: not there, or not to be written
    "reads_a_host_secret": "ENOENT",
    "reads_a_host_secret_from_the_workspace_upwards": "ENOENT",
    "reads_a_host_secret_through_a_link_in_the_workspace": "ENOENT",
    "reads_a_host_secret_through_the_root_of_init": "ENOENT EACCES",  # itself, or an init that may not be looked at
    "reads_a_host_secret_through_the_working_directory": "ENOENT",
    "reads_the_password_hashes": "ENOENT",
    "lists_the_home_directories": lambda names: set(names) <= {".pyenv", ".local", ".cache", ".conda", ".venv"},
    "sees_files_of_the_machine": NOTHING,
    "makes_a_hard_link_to_a_system_file": "EROFS EXDEV EPERM",
    "changes_the_interpreter_through_proc_self_exe": "EACCES EROFS",
    "changes_the_standard_library": "EACCES EROFS",
    "changes_the_permissions_of_a_system_file": "EROFS",
    "changes_the_times_of_a_system_file": "EROFS",
    "changes_the_attributes_of_a_system_file": "EROFS",
    "writes_beside_the_root": "EROFS",
    "writes_into_etc": "EROFS",
    "writes_in_a_workspace_that_it_may_only_read": "EROFS",
    "removes_a_file_of_a_workspace_that_it_may_only_read": "EROFS",
    "changes_permissions_in_a_workspace_that_it_may_only_read": "EROFS",
    "makes_a_device": "EACCES EPERM",
    "opens_a_device_of_the_machine": NOTHING,
    # /proc: its own processes, and nothing to write
    "sees_a_process_of_the_host": "ENOENT",
    "reads_the_environment_of_a_host_process": "ENOENT",
    "signals_a_host_process": "ESRCH",
    "takes_over_core_dumps": "EROFS",
    "presses_magic_keys": "ENOENT EROFS",
    "changes_a_kernel_setting": "EROFS",
    "avoids_the_killer_of_memory_hogs": "EROFS",
    "reads_the_memory_of_init": "EACCES",
    "reads_the_environment_of_init": "EACCES",
    "reads_the_kernel_log": "EPERM",
    # descriptors, environment, names
    "finds_open_descriptors": lambda found: found == [0, 1, 2],
    "finds_a_directory_behind_a_descriptor": NOTHING,
    "finds_the_hosts_environment": lambda found: found == {"token": False, "names": []},
    "learns_the_name_of_the_machine": NO,
    "starts_outside_of_the_workspace": NO,
    # sockets
    "connects_to_a_port_of_the_host": "EPERM",
    "connects_to_an_abstract_socket_of_the_host": "EPERM",
    "connects_to_a_socket_file_of_the_host": "EPERM",
    "connects_to_a_socket_file_in_the_workspace": "EPERM",
    "turns_half_of_a_pair_towards_a_socket_in_the_workspace": "EPERM",
    "sends_from_half_of_a_pair_to_an_abstract_socket": "EPERM",
    "listens_on_an_abstract_socket": "EPERM",
    "opens_a_socket_to_the_hypervisor": "EPERM",
    "opens_an_internet_socket": "EPERM",
    "reaches_out_of_its_network": "EPERM",
    "configures_its_network": "EPERM",
    "opens_a_netlink_socket": "EPERM",
    "opens_a_packet_socket": "EPERM",
    "opens_a_socket_to_the_kernels_cryptography": "EPERM",
    "opens_any_family_of_sockets": NOTHING,
    "makes_a_pair_of_another_family": "EPERM",
    # other processes, keys, shared memory
    "traces": "EPERM",
    "reads_memory_of_another_process": "EPERM",
    "takes_a_descriptor_of_another_process": "EPERM",
    "compares_itself_with_another_process": "EPERM",
    "leaves_a_key_in_a_keyring": "EPERM",
    "asks_for_a_key": "EPERM",
    "leaves_shared_memory": "EPERM",
    "leaves_a_message_queue": "EPERM",
    "leaves_a_semaphore": "EPERM",
    "opens_a_posix_queue": "EPERM",
    "keeps_bytes_in_an_anonymous_file": "ENOSYS",
    "keeps_bytes_in_secret_memory": "ENOSYS",
    "runs_a_program_that_has_no_name": "ENOSYS EPERM",
    "makes_a_ring": "ENOSYS",
    "enters_a_ring": "ENOSYS",
    # namespaces and mounts
    "makes_namespaces_by_unshare": REFUSED,
    "makes_namespaces_by_clone": REFUSED,
    "makes_namespaces_by_clone_with_high_bits": REFUSED,
    "makes_a_namespace_by_clone3": "ENOSYS",
    "joins_a_namespace": "EPERM",
    "mounts": "EPERM",
    "mounts_by_the_new_calls": lambda answers: answers == ["EPERM"] * 5,
    "unmounts": "EPERM",
    "makes_the_root_writable_again": "EPERM",
    "moves_its_root": "EPERM",
    "changes_its_root": "EPERM",
    "opens_a_file_by_its_handle": "EPERM",
    # privileges and the rest of the kernel
    "becomes_root": "EINVAL EPERM",  # EINVAL: there is no root in its user namespace
    "has_capabilities": NO,
    "takes_capabilities_back": "EPERM",
    "may_gain_privileges": NO,
    "answers_its_own_system_calls": "EPERM",
    "lets_itself_be_dumped": "EPERM",
    "names_its_own_tracer": "EPERM",
    "turns_off_randomisation": "EPERM",
    "raises_its_own_limits": NOTHING,
    "changes_limits_of_another_process": "EPERM",
    "asks_for_real_time": "EPERM",
    "pushes_bytes_into_a_terminal": lambda answers: answers == ["EPERM"],
    "opens_the_terminal": NOTHING,
    "uses_doors_that_no_tool_needs": lambda open_doors: open_doors == {},
    # Python's own ways out
    "finds_a_way_through_the_class_hierarchy": "EPERM ENOENT",  # no new process, or a process without the file
    "runs_a_shell_by_ctypes": "ENOENT",
    "gains_by_a_program_with_the_setuid_bit": "EPERM",
}

PROGRAMS = ("skill", "bash", "command-line")
EXPECTED_OF_PROGRAMS: dict[str, Expectation] = {
    # they may talk among themselves, over a loopback of their own that leads nowhere
    "connects_to_a_port_of_the_host": "ECONNREFUSED",
    "reaches_out_of_its_network": "ENETUNREACH",
    "opens_an_internet_socket": lambda answer: answer == "opened",
    "opens_any_family_of_sockets": lambda opened: opened == [2, 10],
}

ONLY_WHERE_THE_WORKSPACE_IS_READ_ONLY = {name for name in EXPECTED if name.endswith("that_it_may_only_read")}

_spec = importlib.util.spec_from_file_location("battery", Path(__file__).parents[1] / "victims" / "battery.py")
assert _spec is not None
assert _spec.loader is not None
battery = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(battery)


def test_every_attack_of_the_battery_has_an_expectation() -> None:
    assert set(EXPECTED) == set(battery.ATTACKS)
    assert set(battery.CONTROLS) <= set(battery.ATTACKS)


@pytest.mark.parametrize("name", sorted(battery.CONTROLS))
def test_the_attack_succeeds_outside_of_the_walls(name: str, driven: dict[str, Any]) -> None:
    answer = driven["answers"]["outside"][name]
    assert "ok" in answer, answer
    assert not holds(EXPECTED[name], answer)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", list(EXPECTED))
def test_the_attack_meets_its_wall(name: str, entry: str, driven: dict[str, Any]) -> None:
    answer = driven["answers"][entry][name]
    if entry == "bash" and name in ONLY_WHERE_THE_WORKSPACE_IS_READ_ONLY:
        assert "ok" in answer  # it declares that it writes; what it wrote is the layer's
        return
    expected = EXPECTED_OF_PROGRAMS.get(name, EXPECTED[name]) if entry in PROGRAMS else EXPECTED[name]
    assert holds(expected, answer), answer


def test_what_a_shell_wrote_became_real_through_its_changes_alone(driven: dict[str, Any]) -> None:
    """The battery's own writes in the workspace, made by bash, were staged and committed by the corridor."""
    assert driven["written"] == ["battery.py", "evil.txt", "facts.json"]


def holds(expected: Expectation, answer: dict[str, Any]) -> bool:
    if isinstance(expected, str):
        return answer.get("errno") in expected.split()
    return "ok" in answer and expected(answer["ok"])
