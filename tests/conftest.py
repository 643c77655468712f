"""What holds for the whole suite."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

# For `make mutants`: the same examples each time, and none is made smaller, which would take most of the time.
settings.register_profile("mutants", derandomize=True, phases=[Phase.explicit, Phase.generate])

WALLS_MUST_WORK = os.environ.get("HANDRAIL_WALLS_MUST_WORK") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test of the walls that skips where they must work has failed: nobody would notice that they are gone."""
    report = yield
    if WALLS_MUST_WORK and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("walls"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and HANDRAIL_WALLS_MUST_WORK=1 says that walls must work"
    return report
