"""The reduced tier, where no user namespace can be made: tried in a process that really cannot make one."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.walls

# As a process that may make no user namespace: one of its own, in which the number of further ones is limited to 0.
WITHOUT = textwrap.dedent(
    """
    import ctypes, json, os, sys, signal
    uid, gid = os.getuid(), os.getgid()
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
    open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
    from handrail.errors import SandboxUnavailable
    from handrail.sandbox.profile import SandboxProfile
    from handrail.sandbox.supervisor import InlineCode, ShellCommand, Supervisor
    workspace = sys.argv[1]
    def alive(words):
        found = 0
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    found += open(f"/proc/{name}/cmdline", "rb").read() == words
                except OSError:
                    pass
        return found
    """
)


ATTACK = """
import errno, os, socket, signal
def tried(call, *words, **more):
    try:
        call(*words, **more)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "allowed"
secret = os.path.dirname(input_data["ws"]) + "/secret"
result = {
    "read own": open("inside").read(),
    "read secret": tried(open, secret),
    "write own": tried(open, "new", "w"),
    "chmod own": tried(os.chmod, "inside", 0o777),
    "chmod secret": tried(os.chmod, secret, 0o777),
    "utime secret": tried(os.utime, secret),
    "setsid": tried(os.setsid),
    "setpgid": tried(os.setpgid, 0, 0),
    "signal host": tried(os.kill, input_data["host"], 0),
    "socket": tried(socket.socket),
    "unix": tried(socket.socket, socket.AF_UNIX),
    "tmp": tried(open, os.environ["TMPDIR"] + "/x", "w"),
    "environ of host": tried(open, f"/proc/{input_data['host']}/environ"),
    "list root": tried(os.listdir, "/"),
}
"""


def without_user_namespaces(body: str, workspace: str) -> dict:
    program = WITHOUT + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", program, workspace, ATTACK], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.promise("cell:tiers:weaker-only-if-allowed")
def test_the_weaker_tier_is_used_only_if_the_caller_and_the_profile_both_allow_it(tmp_path):
    answer = without_user_namespaces(
        """
        def attempt(allow, minimum):
            with Supervisor(pool_size=0, allow_reduced=allow) as keeper:
                try:
                    return keeper.run_sync(InlineCode("result = 1"), SandboxProfile(minimum_tier=minimum)).report.tier
                except SandboxUnavailable:
                    return "refused"
        print(json.dumps({f"{a} {m}": attempt(a, m) for a in (False, True) for m in ("full", "reduced")}))
        """,
        str(tmp_path),
    )
    assert answer == {
        "False full": "refused",
        "False reduced": "refused",
        "True full": "refused",
        "True reduced": "reduced",
    }


@pytest.mark.promise("cell:tiers:reduced-walls-hold")
def test_the_walls_of_the_reduced_tier_hold(tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "inside").write_text("inside")
    (tmp_path / "secret").write_text("secret")
    answer = without_user_namespaces(
        """
        with Supervisor(pool_size=0, allow_reduced=True) as keeper:
            found = {}
            for access in ("read", "write"):
                profile = SandboxProfile(minimum_tier="reduced", workspace=workspace, access=access, exec=True)
                data = json.dumps({"ws": workspace, "host": os.getpid()}).encode()
                result = keeper.run_sync(InlineCode(sys.argv[2], "attack.py", data), profile)
                found[access] = json.loads(result.value) if result.value else result.error
            shell = "trap '' TERM; (sleep 777777 &) ; nohup sleep 777777 & (setsid sleep 777777 &); exit 5"
            result = keeper.run_sync(ShellCommand(("/bin/bash", "-c", shell)), profile)
            found["exit"] = result.exit_code
            found["pid"] = os.getpid()
            found["left"] = alive(b"sleep\\0" + b"777777\\0")
            found["states"] = [result.report.state_of(n) for n in ("landlock", "seccomp", "pid_namespace", "rlimits")]
        print(json.dumps(found))
        """,
        str(tmp_path / "ws"),
    )
    refused = {
        "read secret": "EACCES",
        "chmod own": "EPERM",
        "chmod secret": "EPERM",
        "utime secret": "EPERM",
        "setsid": "EPERM",
        "setpgid": "EPERM",
        "signal host": "EPERM",
        "socket": "EPERM",
        "unix": "EPERM",
        "environ of host": "EACCES",
        "list root": "EACCES",
    }
    allowed = {"read own": "inside", "tmp": "allowed"}
    assert answer["read"] == {**refused, **allowed, "write own": "EACCES"}
    assert answer["write"] == {**refused, **allowed, "write own": "allowed"}
    assert (answer["exit"], answer["left"]) == (5, 0)
    assert answer["states"] == ["degraded", "active", "unavailable", "degraded"]
    ours = f"handrail-{answer['pid']}-"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(ours)]
