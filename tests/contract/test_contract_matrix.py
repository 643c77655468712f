"""The matrix that others are measured with: Handrail keeps every row, and a framework that keeps none is seen to."""

import json
from pathlib import Path

import pytest

from careless_adapter import BrokenAdapter, CarelessAdapter, ForgetfulAdapter, GuessingAdapter, ModestAdapter
from handrail_contract import probes
from handrail_contract.adapter import Adapter, Answer
from handrail_contract.adapters.handrail_ import HandrailAdapter
from handrail_contract.main import _interpreters, main, score, table

CRASH = "crash: at most once"
TESTS = str(Path(__file__).resolve().parents[1])


@pytest.fixture(autouse=True)
def _children_find_these_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", TESTS)


@pytest.fixture(scope="module")
def handrail() -> Adapter:
    return HandrailAdapter()


@pytest.mark.walls
@pytest.mark.promise("contract:matrix:every-row-is-held-here")
@pytest.mark.parametrize("probe", probes.PROBES)
def test_handrail_keeps_every_row(probe: str, handrail: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    if probe == "timeout: control":  # a slow machine must not break it, and no effect is waited for
        monkeypatch.setattr(probes, "WORK_S", 120.0)
        monkeypatch.setattr(probes, "GRACE_S", 60.0)
        monkeypatch.setattr(probes, "_wait_out", lambda started: None)
    row = probes.run_probe(probe, handrail)
    assert row.verdict == "held", row.evidence


@pytest.mark.promise("contract:matrix:carelessness-is-seen")
@pytest.mark.parametrize("probe", probes.PROBES)
def test_a_careless_framework_breaks_every_row(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if probe == "timeout: control":
        monkeypatch.setattr(probes, "TIMEOUT_S", 0.1)
        monkeypatch.setattr(probes, "GRACE_S", 0.1)
        monkeypatch.setattr(probes, "WORK_S", 0.5)
    if probe == "timeout: effect":
        monkeypatch.setattr(probes, "WORK_S", 0.1)
        monkeypatch.setattr(probes, "GRACE_S", 0.0)
    row = probes.run_probe(probe, CarelessAdapter())
    assert row.verdict == "broke", row.evidence


@pytest.mark.parametrize("probe", sorted(probes.PROBES.keys() - {"output: cap"}))  # it is no refusal
def test_what_carries_out_no_right_call_either_is_not_measured(probe: str) -> None:
    row = probes.run_probe(probe, BrokenAdapter())
    assert row.verdict == "cannot run", row.evidence
    assert "control" in row.evidence


@pytest.mark.parametrize("adapter", [GuessingAdapter(), ForgetfulAdapter()], ids=["guesses", "has no words"])
def test_one_effect_is_not_enough_when_the_model_is_told_no_doubt(adapter: Adapter) -> None:
    row = probes.run_probe(CRASH, adapter)
    assert row.verdict == "broke"
    assert row.evidence.startswith("1 effect(s)")


@pytest.mark.parametrize(
    ("text", "failed", "honest"),
    [
        ("It may or may not have happened.", True, True),
        ("The outcome is unknown.", True, True),
        ("The outcome is unknown.", False, False),
        ("charged", False, False),
        ("It did not run.", True, False),
    ],
)
def test_doubt_is_a_mark_and_words(text: str, *, failed: bool, honest: bool) -> None:
    assert probes.tells_of_doubt(Answer(text, failed)) is honest


def test_what_is_not_offered_or_cannot_run_is_named_and_not_counted() -> None:
    rows = [probes.run_probe(probe, ModestAdapter()) for probe in (CRASH, "output: cap", "raw schema: nonsense type")]
    assert [row.verdict for row in rows] == ["not offered", "cannot run", "broke"]
    assert [row.evidence for row in rows[:2]] == ["keeps no record", "RuntimeError: no tools here"]
    assert score({"rows": [row.to_json() for row in rows]}) == (0, 1)


def test_a_framework_that_is_not_here_is_named_and_fails_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_module:Adapter", "--json"]) == 1
    column = json.loads(capfd.readouterr().out)[0]
    assert column["name"] == "no_such_module:Adapter"
    assert {row["verdict"] for row in column["rows"]} == {"cannot run"}
    assert "No module named 'no_such_module'" in column["rows"][0]["evidence"]


def test_the_table_has_a_sign_for_each_verdict() -> None:
    verdicts = ["held", "broke", "not offered", "cannot run"] * len(probes.PROBES)
    rows = [{"verdict": verdict} for verdict, _ in zip(verdicts, probes.PROBES, strict=False)]
    lines = table([{"name": "one", "version": "1.0", "rows": rows}]).splitlines()
    assert lines[0].split() == ["one", "1.0"]
    assert [line.split()[-1] for line in lines[1:5]] == ["✔", "✘", "·", "?"]
    assert lines[-2].split()[-1] == "{}/{}".format(*score({"rows": rows}))


def test_a_name_that_is_none_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["strandz"])
    assert ended.value.code == 2
    assert "there are: handrail, pydantic-ai" in capsys.readouterr().err


def test_an_interpreter_is_named_for_one_framework_or_for_all_and_its_path_may_hold_any_sign() -> None:
    found = _interpreters(["langchain=/opt/a=b/python", "/opt/c=d/python"])
    assert (found["langchain"], found[""]) == ("/opt/a=b/python", "/opt/c=d/python")
