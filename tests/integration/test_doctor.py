"""``handrail doctor``: what a person reads, and what a program reads."""

import json

import pytest
from typer.testing import CliRunner

from handrail.cli import doctor
from handrail.cli.main import app
from handrail.sandbox.report import MachineReport
from handrail_cell.wire import Protection

REDUCED = MachineReport(
    "reduced",
    "Linux",
    (
        Protection("full_tier", "unavailable", "user namespaces give no capabilities", "sysctl x=0"),
        Protection("landlock", "active", "ABI 7"),
    ),
)
NONE = MachineReport("none", "Darwin", (Protection("cells", "unavailable", "no Linux kernel", "run this on Linux"),))


@pytest.mark.walls
def test_on_this_machine_every_wall_is_named_with_its_evidence() -> None:
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    data = json.loads(shown.stdout)
    assert shown.exit_code == 0
    assert data["tier"] == "full"
    found = {item["name"]: item for item in data["protections"]}
    walls = {"user_namespace", "network_namespace", "pid_namespace", "landlock", "seccomp", "capabilities", "rlimits"}
    assert walls <= set(found)
    assert all(found[name]["state"] == "active" and found[name]["evidence"] for name in walls)
    assert all(item["remedy"] for item in data["protections"] if item["state"] == "unavailable")


@pytest.mark.parametrize(
    ("report", "status", "words"),
    [
        (REDUCED, 1, ["full tier", "unavailable", "to mend: sysctl x=0", "ABI 7", "--allow-weaker-walls"]),
        (NONE, 2, ["no Linux kernel", "to mend: run this on Linux", "is refused"]),
    ],
)
def test_weaker_walls_show_in_words_and_in_the_exit_status(
    report: MachineReport, status: int, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "probe", lambda: report)
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == status
    assert all(word in shown.stdout for word in words), shown.stdout
    assert "\x1b" not in shown.stdout
    as_data = CliRunner().invoke(app, ["doctor", "--json"])
    assert as_data.exit_code == status
    assert json.loads(as_data.stdout) == report.to_json()
