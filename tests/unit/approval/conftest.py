"""One process from which the tests of the question start their programs."""

from collections.abc import Iterator

import pytest

from pty_kit import Terminals


@pytest.fixture(scope="module")
def terminals() -> Iterator[Terminals]:
    with Terminals("handrail.approval.console") as opened:
        yield opened
