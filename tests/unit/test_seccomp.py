"""The filters against an emulator and a reference of our own: neither shares a line with the compiler."""

import itertools
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handrail_cell import seccomp
from handrail_cell._numbers import HIGHEST_KNOWN, NUMBERS

ARCHES = (0xC000003E, 0xC00000B7)
EPERM, ENOSYS, KILL, ALLOW = 0x00050001, 0x00050026, 0x80000000, 0x7FFF0000


def emulate(program: bytes, nr: int, arch: int, arguments: tuple[int, ...]) -> int:
    """Classic BPF as Documentation/networking/filter.rst describes it, over ``struct seccomp_data``."""
    data = struct.pack("<IIQ6Q", nr, arch, 0, *arguments)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, at = 0, 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        match op:
            case 0x20:  # ld [k]
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x15:  # jeq
                at += yes if accumulator == k else no
            case 0x35:  # jge
                at += yes if accumulator >= k else no
            case 0x05:  # ja
                at += k
            case 0x54:  # and
                accumulator &= k
            case 0x06:  # ret
                return k
            case _:
                raise AssertionError(f"opcode {op:#x} is not one we emit")


def reference(policy: seccomp.Policy, nr: int, arch: int, arguments: tuple[int, ...], column: int) -> int:
    if arch != ARCHES[column]:
        return KILL
    if nr >= 0x40000000:
        return KILL
    if nr > HIGHEST_KNOWN:
        return ENOSYS
    rule = policy.get(nr, ALLOW)
    if isinstance(rule, int):
        return rule
    for check in rule:
        met = (arguments[check.argument] & 0xFFFFFFFF & check.mask) == check.value
        if met != check.negate:
            return check.answer
    return ALLOW


def policies(column: int) -> list[seccomp.Policy]:
    found = [seccomp.permanent_policy(column)]
    found += [
        seccomp.final_policy(column, may_exec=may_exec, network=network, reduced=reduced, scoped_signals=scoped)
        for may_exec in (False, True)
        for network in (False, True)
        for reduced in (False, True)
        for scoped in (False, True)
    ]
    return found


COMPILED = [
    (column, policy, seccomp.compile_filter(policy, column)) for column in (0, 1) for policy in policies(column)
]
CONSTANTS = sorted(
    {check.value for _, policy, _ in COMPILED for rule in policy.values() if isinstance(rule, tuple) for check in rule}
    | {0, 1, 0x7E020000, 0x10000000, 0x20000, 0x10000, 0x8914, 0xFFFFFFFF}
)
words = st.one_of(
    st.sampled_from(CONSTANTS),
    st.builds(lambda low, high: low | high << 32, st.sampled_from(CONSTANTS), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**64 - 1),
)
numbers = st.one_of(st.integers(0, 600), st.integers(0x3FFFFFF0, 0x40000250), st.integers(0, 2**32 - 1))


@pytest.mark.promise("cell:seccomp:filter-agrees-with-its-table")
@settings(deadline=None, max_examples=400)
@given(st.sampled_from(COMPILED), numbers, st.sampled_from([*ARCHES, 0x40000003, 0]), st.tuples(*[words] * 6))
@example(COMPILED[0], 16, ARCHES[0], (0, 0x5412 | 1 << 32, 0, 0, 0, 0))
def test_the_compiled_filter_says_what_the_table_says(compiled, nr, arch, arguments):
    column, policy, program = compiled
    assert emulate(program, nr, arch, arguments) == reference(policy, nr, arch, arguments, column)


@pytest.mark.parametrize("column", [0, 1])
def test_every_number_of_every_policy_is_decided_as_its_table_says(column):
    for own, policy, program in COMPILED:
        if own == column:
            for nr in range(HIGHEST_KNOWN + 200):
                zeros = (0,) * 6
                assert emulate(program, nr, ARCHES[column], zeros) == reference(
                    policy, nr, ARCHES[column], zeros, column
                )


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_clone_with_any_namespace_flag_is_refused_whatever_the_high_bits_are(column, flag, high):
    for may_exec in (False, True):
        program = seccomp.compile_filter(seccomp.final_policy(column, may_exec=may_exec), column)
        assert emulate(program, NUMBERS["clone"][column], ARCHES[column], (flag | high | 17,) + (0,) * 5) == EPERM


def test_threads_are_allowed_and_processes_are_not_where_the_profile_says_so():
    program = seccomp.compile_filter(seccomp.final_policy(0, may_exec=False), 0)
    thread = 0x3D0F00
    assert emulate(program, 56, ARCHES[0], (thread, 0, 0, 0, 0, 0)) == ALLOW
    assert emulate(program, 56, ARCHES[0], (17, 0, 0, 0, 0, 0)) == EPERM
    for name in ("fork", "vfork", "execve"):
        assert emulate(program, NUMBERS[name][0], ARCHES[0], (0,) * 6) == EPERM


@pytest.mark.parametrize("column", [0, 1])
def test_where_sockets_may_be_made_they_are_tcp_and_udp_alone(column):
    program = seccomp.compile_filter(seccomp.permanent_policy(column), column)
    families, kinds, protocols = (0, 1, 2, 3, 10, 11, 16, 17, 38, 40, 44), (0, 1, 2, 3, 4, 5, 6, 10), (0, 1, 6, 17, 262)
    for family, kind, protocol in itertools.product(families, kinds, protocols):
        arguments = (family | 5 << 32, kind | 0o2004000, protocol | 1 << 32, 0, 0, 0)
        wanted = family in (2, 10) and kind in (0, 1, 2) and protocol in (0, 6, 17)  # kind 0 is nothing to the kernel
        answer = emulate(program, NUMBERS["socket"][column], ARCHES[column], arguments)
        assert answer == (ALLOW if wanted else EPERM), (family, kind, protocol)


@pytest.mark.parametrize("may_exec", [False, True])
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_sockets_are_for_programs_in_a_network_of_their_own_or_where_the_host_granted_its(may_exec, network, reduced):
    policy = seccomp.final_policy(0, may_exec=may_exec, network=network, reduced=reduced)
    answer = emulate(seccomp.compile_filter(policy, 0), NUMBERS["socket"][0], ARCHES[0], (2, 1, 0, 0, 0, 0))
    assert answer == (ALLOW if network or (may_exec and not reduced) else EPERM)


def test_no_conditional_jump_reaches_further_than_a_byte_and_all_land_inside():
    for _, _, program in COMPILED:
        length = len(program) // 8
        assert length <= 4096
        for at in range(length):
            op, yes, no, k = struct.unpack_from("<HBBI", program, at * 8)
            if op in (0x15, 0x35):
                assert at + 1 + max(yes, no) < length
            if op == 0x05:
                assert at + 1 + k < length
