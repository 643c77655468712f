"""TOML files: one error for all that can be wrong with a text, wherever such a file is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigurationError
from handrail.approval.policy_file import load_policy
from handrail.mcp.catalog import load_catalog
from handrail.models.catalog import load_models
from handrail.stricttoml import NotToml, read

WRONG = [
    ("a = 1\n[[rule]\n", "Expected ']]' at the end of an array declaration", (2, 7)),
    ("a = 1\na = 2\n", "Cannot overwrite a value", (2, 6)),
    ("a =", "Invalid value (at end of document)", (None, None)),
    ("a = " + "[" * 5_000, "arrays or tables nest too deep", (None, None)),
    ("a = " + "1" * 5_000, "a number is too long: Exceeds the limit", (None, None)),
]


def test_a_document_is_plain_values() -> None:
    assert read('a = 1\n[b]\nc = ["x", 2.5, true]\n') == {"a": 1, "b": {"c": ["x", 2.5, True]}}


@pytest.mark.parametrize(("text", "said", "place"), WRONG, ids=range(len(WRONG)))
def test_whatever_is_wrong_is_one_error_with_its_place(
    text: str, said: str, place: tuple[int | None, int | None]
) -> None:
    with pytest.raises(NotToml) as wrong:
        read(text)
    assert wrong.value.message.startswith(said)
    assert (wrong.value.line, wrong.value.column) == place
    assert str(wrong.value).startswith(said)
    assert ("(at line 2, column" in str(wrong.value)) == (place != (None, None))


@pytest.mark.parametrize("load", [load_policy, load_catalog, load_models], ids=lambda load: load.__name__)
@pytest.mark.parametrize(("text", "said", "place"), WRONG, ids=range(len(WRONG)))
def test_every_file_of_ours_is_refused_by_its_name(
    load: Callable[[str], Any], text: str, said: str, place: tuple[int | None, int | None], tmp_path: Path
) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load(str(file))
    assert str(refused.value).startswith(str(file))
    assert said in str(refused.value)
