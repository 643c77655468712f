"""One process from which the tests of the session start it."""

from collections.abc import Iterator

import pytest

from pty_kit import Terminals


@pytest.fixture(scope="module")
def terminals() -> Iterator[Terminals]:
    with Terminals("handrail.cli.run", "handrail.models.openai_compatible") as opened:
        yield opened
