"""Random trees, random operations, a real cell: what is committed is what would have happened, and undo is exact."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from changes_kit.committing import commit
from changes_kit.operations import perform
from changes_kit.places import quick_directory
from changes_kit.trees import tree_of
from handrail.changes.store import ChangeStore
from handrail.sandbox.profile import profile_for
from handrail.sandbox.staging import Staging
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.tool import Capability
from handrail.workspace import Workspace

pytestmark = [pytest.mark.walls, pytest.mark.slow]

CODE = (Path(__file__).parent.parent / "changes_kit" / "operations.py").read_text() + (
    "\nperform(input_data['root'], input_data['operations'])\n"
)

names = st.sampled_from(["a", "b", "c", "d", "e"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
texts = st.sampled_from(["", "one\n", "two\nlines\n", "x" * 5000, "ünïcode\n"])
modes = st.sampled_from([0o600, 0o644, 0o755, 0o700, 0o664])
targets = st.sampled_from(["a", "../b", "missing", "/etc/hostname", "d/e"])
operation = st.one_of(
    st.tuples(st.just("write"), paths, texts),
    st.tuples(st.just("append"), paths, texts),
    st.tuples(st.just("delete"), paths),
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("replace_directory"), paths, st.lists(names, max_size=3, unique=True)),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("rename_over"), paths, paths),
    st.tuples(st.just("link"), paths, targets),
    st.tuples(st.just("mode"), paths, modes),
    st.tuples(st.just("touch"), paths),
).map(list)
growing = st.lists(
    st.one_of(
        st.tuples(st.just("mkdir"), paths).map(list),
        st.tuples(st.just("write"), paths, texts).map(list),
        st.tuples(st.just("link"), paths, targets).map(list),
        st.tuples(st.just("mode"), paths, modes).map(list),
    ),
    min_size=5,
    max_size=25,
)


@pytest.fixture(scope="module")
def supervisor():
    with Supervisor() as running:
        yield running


def run_staged(supervisor: Supervisor, store: ChangeStore, operations: list, *, overlay: bool):
    """Carry out ``operations`` in a cell over the workspace, or on a copy of it; return the changes."""
    stage = Staging(overlay=overlay).begin(store.workspace)
    profile = stage.profile(profile_for(Capability(writes=True), store.workspace.path, stage=True))
    data = json.dumps({"root": store.workspace.path, "operations": operations}).encode()
    result = supervisor.run_sync(InlineCode(CODE, "operations", data), profile)
    assert (result.exit_code, result.error, result.limit) == (0, None, None), result
    with result.staged as layer:
        return stage.changes(layer.upper_fd, store.workspace.fd, store.contents)


@pytest.mark.promise("changes:commit:same-as-for-real")
@pytest.mark.promise("changes:undo:exact")
@pytest.mark.promise("changes:drop:untouched")
@pytest.mark.promise("changes:copy:where-no-overlay")
@settings(
    max_examples=25,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(growth=growing, operations=st.lists(operation, min_size=1, max_size=12))
def test_a_commit_gives_what_doing_it_for_real_gives_and_undo_takes_it_back(supervisor, growth, operations):
    with quick_directory(for_cells=True) as base:
        root, real = base / "workspace", base / "real"
        root.mkdir()
        perform(str(root), growth)
        shutil.copytree(root, real, symlinks=True)
        before = tree_of(root)
        with Workspace(root) as workspace, ChangeStore(str(base / "state"), workspace) as store:
            changes = run_staged(supervisor, store, operations, overlay=True)
            on_a_copy = run_staged(supervisor, store, operations, overlay=False)
            assert on_a_copy == changes, "the same on a copy, where there can be no overlay"
            assert tree_of(root) == before, "staged and dropped: untouched"
            perform(str(real), operations)
            call = commit(store, changes)
            assert tree_of(root) == tree_of(real), "committed: as for real"
            assert bool(changes) == (tree_of(real) != before), "no change that is none"
            if changes:
                undo = commit(store, store.inverse_of(call))
                assert tree_of(root) == before, "undone: as before"
                commit(store, store.inverse_of(undo))
                assert tree_of(root) == tree_of(real), "the undo undone"
