"""Where the kernel refuses an overlay, a call works on a copy of a small workspace, with the same result."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from changes_kit.committing import commit
from changes_kit.jobs import job_in
from changes_kit.operations import perform
from changes_kit.places import quick_directory
from changes_kit.trees import grow, tree_of
from handrail.changes.store import ChangeStore
from handrail.errors import ChangeConflict, ChangeError, OverlayRefused
from handrail.outcome import Reason
from handrail.sandbox.bodies import CellBody, Cells
from handrail.sandbox.profile import profile_for
from handrail.sandbox.staging import Staging
from handrail.sandbox.staging_copy import CopyLimit
from handrail.sandbox.staging_probe import probe_staging
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.tool import Capability
from handrail.workspace import Workspace
from handrail_cell.wire import Limits

pytestmark = pytest.mark.walls

CODE = (Path(__file__).parent.parent / "changes_kit" / "operations.py").read_text() + (
    "\nperform(input_data['root'], input_data['operations'])\n"
)


@pytest.fixture(scope="module")
def supervisor():
    with Supervisor() as running:
        yield running


@pytest.fixture
def place():
    with quick_directory(for_cells=True) as base:
        root = base / "workspace"
        grow(root, {"a": "a\n", "b": "b\n", "d/x": "x", "d/y": "y", "d/sub/z": "z", "e/q": "q", "same": "same"})
        (root / "link").symlink_to("a")
        (root / "d/x").chmod(0o755)
        yield root


@pytest.fixture
def store(place: Path):
    with Workspace(place) as workspace, ChangeStore(str(place.parent / "state"), workspace) as opened:
        yield opened


def on_a_copy(
    supervisor: Supervisor,
    store: ChangeStore,
    operations: list[list],
    *,
    before: Callable[[], object] = lambda: None,
    during: Callable[[], object] = lambda: None,
):
    """What the call changed. ``before`` happens after the host has read the workspace, ``during`` after the call."""
    stage = Staging(overlay=False).begin(store.workspace)
    before()
    profile = stage.profile(profile_for(Capability(writes=True), store.workspace.path, stage=True))
    data = json.dumps({"root": store.workspace.path, "operations": operations}).encode()
    result = supervisor.run_sync(InlineCode(CODE, "operations", data), profile)
    assert (result.exit_code, result.error, result.limit) == (0, None, None), result
    during()
    with result.staged as layer:
        return stage.changes(layer.upper_fd, store.workspace.fd, store.contents)


OPERATIONS = [
    ["append", "a", "more"],
    ["delete", "d/sub"],
    ["move", "e", "f"],
    ["mode", "b", 0o600],
    ["link", "new", "b"],
    ["write", "dir", "no"],
    ["touch", "same"],
]


def test_a_call_on_a_copy_leaves_the_workspace_alone_and_commits_to_what_it_did(supervisor, store, place):
    before = tree_of(place)
    changes = on_a_copy(supervisor, store, OPERATIONS)
    assert tree_of(place) == before
    call = commit(store, changes)
    after = tree_of(place)
    commit(store, store.inverse_of(call))
    assert tree_of(place) == before
    perform(str(place), OPERATIONS)
    assert tree_of(place) == after


def test_a_call_that_changes_nothing_in_its_copy_changes_nothing(supervisor, store):
    assert not on_a_copy(supervisor, store, [["touch", "a"], ["append", "b", ""], ["mode", "same", 0o644]])


@pytest.mark.promise("changes:race:no-edit-lost")
@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("edit", ["content", "deleted", "appeared"])
def test_an_edit_beside_a_call_on_a_copy_is_a_conflict_and_is_kept(supervisor, store, place, when, edit):
    def outside():
        if edit == "content":
            (place / "a").write_text("mine")
        elif edit == "deleted":
            (place / "a").unlink()
        else:
            (place / "fresh").write_text("mine")

    with pytest.raises(ChangeConflict) as caught:
        on_a_copy(supervisor, store, [["append", "a", "more"], ["write", "fresh", "1"]], **{when: outside})
    assert caught.value.paths == ((b"fresh",) if edit == "appeared" else (b"a",))
    assert (place / "a").exists() == (edit != "deleted")
    assert edit == "deleted" or (place / ("fresh" if edit == "appeared" else "a")).read_text() == "mine"


@pytest.mark.promise("changes:hard-links:refused-by-name")
def test_a_copy_parts_no_file_from_its_other_names_either(supervisor, store, place):
    os.link(place / "a", place / "also-a")
    with pytest.raises(ChangeError, match="'a' has 2 hard links"):
        on_a_copy(supervisor, store, [["append", "a", "more"]])
    assert on_a_copy(supervisor, store, [["append", "b", "more"]]).paths == (b"b",)


@pytest.mark.promise("changes:copy:limited")
@pytest.mark.parametrize(
    ("limit", "word"), [(CopyLimit(bytes=3), "more than 3 bytes"), (CopyLimit(names=2), "more than 2 names")]
)
def test_a_workspace_above_the_copy_limit_is_refused_with_both_reasons(store, limit, word):
    with pytest.raises(ChangeError, match=f"no overlay here .*, and the workspace holds {word}"):
        Staging(overlay=False, copy=limit).begin(store.workspace)
    with pytest.raises(ChangeError, match="copies no workspace"):
        Staging(overlay=False, copy=None).begin(store.workspace)


def test_a_workspace_with_a_special_file_is_refused_by_name(store, place):
    os.mkfifo(place / "pipe")
    with pytest.raises(ChangeError, match="'pipe' is a FIFO"):
        Staging(overlay=False).begin(store.workspace)


@pytest.mark.promise("changes:copy:limited")
def test_what_a_call_writes_to_its_copy_is_bounded_by_the_disk_limit(supervisor, store, place):
    (place / "large").write_bytes(bytes(3 << 20))
    stage = Staging(overlay=False).begin(store.workspace)
    limits = Limits(disk_bytes=1 << 20)
    profile = stage.profile(profile_for(Capability(writes=True), store.workspace.path, limits, stage=True))
    flood = "with open(input_data, 'wb') as file:\n    while True:\n        file.write(bytes(4096))\n"
    data = json.dumps(str(place / "flood")).encode()
    result = supervisor.run_sync(InlineCode(flood, "flood", data), profile)
    assert result.limit == "disk"
    with result.staged as layer:
        assert os.stat("flood", dir_fd=layer.upper_fd).st_size <= 1 << 20
        assert os.stat("large", dir_fd=layer.upper_fd).st_size == 3 << 20


class RefusingOnce:
    """A supervisor whose kernel refuses overlays, for the time that ``refuses`` says."""

    def __init__(self, real: Supervisor) -> None:
        self._real = real
        self.asked: list[str] = []

    async def run(self, program, profile, **more):
        self.asked.append(profile.access)
        if profile.access == "stage":
            raise OverlayRefused("Operation not permitted")
        return await self._real.run(program, profile, **more)


def body_on(supervisor, staging: Staging | None = None) -> CellBody:
    cells = Cells(supervisor, staging=staging or Staging())
    code = "open(input_data['path'], 'a').write('more')"
    return CellBody(
        cells,
        lambda job: InlineCode(code, "append", json.dumps({"path": job.workspace.path + "/a"}).encode()),
        capability=Capability(writes=True),
        limits=Limits(),
    )


@pytest.mark.promise("changes:copy:where-no-overlay")
def test_a_refused_overlay_is_followed_by_a_copy_at_once_and_remembered(supervisor, store):
    refusing = RefusingOnce(supervisor)
    body = body_on(refusing)
    for _ in range(2):
        effect = anyio.run(body.run, job_in(store))
        assert effect.outcome.succeeded, effect.outcome
        assert effect.changes.paths == (b"a",)
    assert refusing.asked == ["stage", "copy", "copy"]


@pytest.mark.promise("changes:copy:limited")
def test_a_refused_overlay_over_a_large_workspace_runs_nothing_and_says_why(supervisor, store, place):
    refusing = RefusingOnce(supervisor)
    effect = anyio.run(body_on(refusing, Staging(copy=CopyLimit(names=2))).run, job_in(store))
    assert effect.outcome.reason is Reason.CANNOT_STAGE
    assert "nothing ran: there can be no overlay here (Operation not permitted)" in effect.outcome.text
    assert "more than 2 names" in effect.outcome.text
    assert refusing.asked == ["stage"]


def test_the_probe_says_what_a_machine_without_overlays_does_instead():
    found = probe_staging(overlay=False)
    assert (found.name, found.state) == ("staging", "degraded"), found
    assert "32 MiB and 2000 names are copied" in found.evidence
