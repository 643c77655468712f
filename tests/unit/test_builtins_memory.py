"""What read and grep cost in memory: the same for a file of a gigabyte as for one of a few megabytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEBIBYTE = 1 << 20
MARGIN = 24 * MEBIBYTE  # what the allocator may keep; the files are far larger

# Runs in a process of its own. VmHWM is the peak of this program alone (proc(5)); ru_maxrss would hold its parent's.
PROGRAM = r"""
import json, sys
from pathlib import Path
from handrail import ToolExecutor, ToolRegistry
from handrail.builtins import BUILTIN_PLUGINS

def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024

registry = ToolRegistry()
for plugin in BUILTIN_PLUGINS:
    registry.register_plugin(plugin, only={"read", "grep"} if plugin.name == "builtin" else None)
with ToolExecutor(registry, workspace=sys.argv[1]) as executor:
    said = []
    for calls in json.loads(sys.argv[2]):
        texts = [executor.execute_sync(name, arguments).text for name, arguments in calls]
        said.append({"texts": texts, "peak": peak()})
print(json.dumps(said))
"""


def lay_text(file: Path, mebibytes: int) -> int:
    """Half of it short lines, half of it one long line, then a last line. Returns the number of the long line."""
    lines = (b"x" * 63 + b"\n") * (MEBIBYTE // 64)
    with file.open("wb") as out:
        for _ in range(mebibytes // 2):
            out.write(lines)
        for _ in range(mebibytes // 2):
            out.write(b"y" * MEBIBYTE)
        out.write(b"\nneedle at the end\n")
    return mebibytes // 2 * (MEBIBYTE // 64) + 1


@pytest.mark.promise("builtins:memory:does-not-grow-with-the-file")
def test_read_and_grep_of_huge_files_take_no_more_memory_than_of_small_ones(tmp_path: Path) -> None:
    small_line, large_line = lay_text(tmp_path / "small.txt", 4), lay_text(tmp_path / "large.txt", 96)
    for name, size in (("small.bin", 4 * MEBIBYTE), ("large.bin", 1024 * MEBIBYTE)):
        with (tmp_path / name).open("wb") as out:
            out.write(b"needle\n" + b"text\n" * (64 * 1024 // 5))
            out.truncate(size)  # the rest is a hole, which reads as NULs

    def calls(size: str, long_line: int) -> list[tuple[str, dict[str, object]]]:
        return [
            ("read", {"path": f"{size}.txt", "offset": long_line + 1}),
            ("read", {"path": f"{size}.txt", "offset": long_line}),
            ("grep", {"pattern": "needle", "path": f"{size}.txt"}),
            ("read", {"path": f"{size}.bin", "limit": 1}),
            ("read", {"path": f"{size}.bin", "offset": 1_000_000}),
            ("grep", {"pattern": "needle", "path": f"{size}.bin"}),
        ]

    both = json.dumps([calls("small", small_line), calls("large", large_line)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), both], capture_output=True, text=True, timeout=120, check=True
    )
    small, large = json.loads(done.stdout)
    for said, size, line, length in ((small, "small", small_line, 4), (large, "large", large_line, 1024)):
        end, long, found, page, far, binary = said["texts"]
        assert end == "needle at the end\n"
        assert long.startswith("yyyy")
        assert long.endswith(f"go on with offset={line + 1}]")
        assert found == f"{size}.txt:{line + 1}: needle at the end"
        assert page.startswith("needle\n")
        assert f"binary file ({length * MEBIBYTE} bytes)" in far
        assert binary == f"{size}.bin:1: needle"  # found before the first sign that it is binary, where it ends
    assert large["peak"] - small["peak"] < MARGIN, (small["peak"], large["peak"])
