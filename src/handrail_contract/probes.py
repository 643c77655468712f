"""The rows of the matrix. Each tries one thing on an adapter and says whether the promise held, with the evidence."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Literal

from pydantic import StrictBool, StrictInt

from handrail_contract.adapter import Adapter, Answer, NotOffered

NOT_OFFERED = 64
"""Exit status of a child whose framework has nothing to go on from."""

Verdict = Literal["held", "broke", "not offered", "cannot run"]


@dataclass(frozen=True, slots=True)
class Row:
    """One promise tried on one framework."""

    probe: str
    promise: str
    verdict: Verdict
    evidence: str

    def to_json(self) -> dict[str, str]:
        """Plain JSON data."""
        return asdict(self)


class ControlFailed(Exception):
    """What is right was not carried out either, so a refusal would say nothing: the row cannot be measured."""


Probe = Callable[[Adapter], tuple[bool, str]]
PROBES: dict[str, tuple[str, Probe]] = {}


def _probe(name: str, promise: str) -> Callable[[Probe], Probe]:
    def register(probe: Probe) -> Probe:
        PROBES[name] = (promise, probe)
        return probe

    return register


def run_probe(name: str, adapter: Adapter) -> Row:
    """Try one promise. Whatever the framework raises outside a call is evidence, never the end of the matrix."""
    promise, probe = PROBES[name]
    try:
        held, evidence = probe(adapter)
    except NotOffered as reason:
        return Row(name, promise, "not offered", str(reason))
    except ControlFailed as reason:
        return Row(name, promise, "cannot run", str(reason))
    except Exception as error:  # noqa: BLE001 - a peer may raise anything
        return Row(name, promise, "cannot run", f"{type(error).__name__}: {error}"[:300])
    return Row(name, promise, "held" if held else "broke", evidence)


# ── coercion and decoding ────────────────────────────────────────────────────────────────────────────────────────


def _typed_call(adapter: Adapter, raw: str) -> tuple[bool, str]:
    """Whether the handler stayed closed; and first, as a control, that a correct call enters it."""
    entered: list[Any] = []

    def probe(n: int, flag: bool, s: str) -> str:
        """Probe.

        Args:
            n: a number
            flag: a flag
            s: a text
        """
        entered.append((n, flag, s))
        return "done"

    invoke = adapter.typed(probe)
    control = _attempt(invoke, '{"n": 1, "flag": true, "s": "a"}')
    if entered != [(1, True, "a")]:
        raise ControlFailed(f"the control call did not run: {control}")
    entered.clear()
    said = _attempt(invoke, raw)
    return not entered, f"handler ran with {entered[0]!r}" if entered else f"refused: {said}"


def _attempt(invoke: Callable[[str], Any], raw: str) -> str:
    try:
        answer = invoke(raw)
    except Exception as error:  # noqa: BLE001 - a refusal may be an exception
        return f"{type(error).__name__}: {error}"[:160].replace("\n", " ")
    return str(answer.text)[:160].replace("\n", " ")


@_probe("coercion: text for a number", 'n="42" never enters the handler')
def _text_for_number(adapter: Adapter) -> tuple[bool, str]:
    return _typed_call(adapter, '{"n": "42", "flag": true, "s": "a"}')


@_probe("coercion: boolean for a number", "n=true never enters the handler")
def _boolean_for_number(adapter: Adapter) -> tuple[bool, str]:
    return _typed_call(adapter, '{"n": true, "flag": true, "s": "a"}')


@_probe("coercion: word for a boolean", 'flag="yes" never enters the handler')
def _word_for_boolean(adapter: Adapter) -> tuple[bool, str]:
    return _typed_call(adapter, '{"n": 1, "flag": "yes", "s": "a"}')


@_probe(
    "coercion: strict annotations", "a function annotated with pydantic's StrictInt and StrictBool is never coerced to"
)
def _strict_annotations(adapter: Adapter) -> tuple[bool, str]:
    entered: list[Any] = []

    def probe(n: StrictInt, flag: StrictBool) -> str:
        """Probe.

        Args:
            n: a number
            flag: a flag
        """
        entered.append((n, flag))
        return "done"

    invoke = adapter.typed(probe)
    control = _attempt(invoke, '{"n": 1, "flag": true}')
    if entered != [(1, True)]:
        raise ControlFailed(f"the control call did not run: {control}")
    for raw in ('{"n": "42", "flag": true}', '{"n": true, "flag": true}', '{"n": 1, "flag": "yes"}'):
        entered.clear()
        said = _attempt(invoke, raw)
        if entered:
            return False, f"handler ran with {entered[0]!r}"
    return True, f"all three refused; the last: {said}"


@_probe("decoding: unknown key", "a key that the function does not have never enters the handler")
def _unknown_key(adapter: Adapter) -> tuple[bool, str]:
    return _typed_call(adapter, '{"n": 1, "flag": true, "s": "a", "extra": 1}')


@_probe("decoding: duplicate key", "two readers can never see two calls")
def _duplicate_key(adapter: Adapter) -> tuple[bool, str]:
    if not adapter.parses_json:
        raise NotOffered("takes a mapping: the text is parsed before it gets here")
    return _typed_call(adapter, '{"n": 1, "n": 2, "flag": true, "s": "a"}')


@_probe("decoding: NaN", "NaN is not JSON and never enters the handler")
def _nan(adapter: Adapter) -> tuple[bool, str]:
    if not adapter.parses_json:
        raise NotOffered("takes a mapping: the text is parsed before it gets here")
    entered: list[Any] = []

    def probe(x: float) -> str:
        """Probe.

        Args:
            x: a number
        """
        entered.append(x)
        return "done"

    invoke = adapter.typed(probe)
    control = _attempt(invoke, '{"x": 1.5}')
    if entered != [1.5]:
        raise ControlFailed(f"the control call did not run: {control}")
    entered.clear()
    said = _attempt(invoke, '{"x": NaN}')
    return not entered, f"handler ran with {entered[0]!r}" if entered else f"refused: {said}"


# ── raw schemas ──────────────────────────────────────────────────────────────────────────────────────────────────


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _raw_call(adapter: Adapter, schema: Mapping[str, Any], raw: str) -> tuple[list[Any], str]:
    entered: list[Any] = []

    def probe(arguments: Mapping[str, Any]) -> str:
        entered.append(dict(arguments))
        return "done"

    try:
        invoke = adapter.raw(schema, probe)
    except NotOffered:
        raise
    except Exception as error:  # noqa: BLE001 - refused at registration
        return entered, f"registration refused: {type(error).__name__}: {error}"[:160].replace("\n", " ")
    return entered, _attempt(invoke, raw)


def _raw_control(adapter: Adapter, schema: Mapping[str, Any]) -> None:
    """First, that a good schema is accepted and a call that fits it enters the handler."""
    entered, said = _raw_call(adapter, schema, '{"n": 1}')
    if entered != [{"n": 1}]:
        raise ControlFailed(f"the control call did not run: {said}")


@_probe("raw schema: violating arguments", "arguments that break a raw schema never enter the handler")
def _violating(adapter: Adapter) -> tuple[bool, str]:
    schema = _object({"n": {"type": "integer", "minimum": 0}})
    _raw_control(adapter, schema)
    for raw in ('{"n": "x"}', '{"n": -5}', "{}", '{"n": 1, "extra": 2}'):
        entered, said = _raw_call(adapter, schema, raw)
        if entered:
            return False, f"handler ran with {entered[0]!r}"
    return True, f"all four refused; the last: {said}"


@_probe("raw schema: nonsense type", 'a schema that says "type": "intteger" is refused at registration')
def _nonsense(adapter: Adapter) -> tuple[bool, str]:
    _raw_control(adapter, _object({"n": {"type": "integer"}}))
    entered, said = _raw_call(adapter, _object({"n": {"type": "intteger"}}), '{"n": 1}')
    return said.startswith("registration refused"), f"handler ran with {entered[0]!r}" if entered else said


@_probe("raw schema: remote reference", "a remote $ref makes no request and never lets arguments pass unchecked")
def _remote_reference(adapter: Adapter) -> tuple[bool, str]:
    _raw_control(adapter, _object({"n": {"type": "integer"}}))
    with _listener() as (port, hits):
        schema = _object({"n": {"$ref": f"http://127.0.0.1:{port}/schema.json"}})
        entered, said = _raw_call(adapter, schema, '{"n": {"anything": 1}}')
    if hits:
        return False, f"{len(hits)} request(s) made"
    return not entered, f"handler ran unchecked with {entered[0]!r}" if entered else f"no request; {said}"


@contextmanager
def _listener() -> Generator[tuple[int, list[str]]]:
    hits: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hits.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "integer"}')

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it overrides
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, hits
    finally:
        server.shutdown()
        server.server_close()


# ── time, output ─────────────────────────────────────────────────────────────────────────────────────────────────

TIMEOUT_S = 1.0
WORK_S = 4.0
GRACE_S = 1.5
_BUSY = """
import os, time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    sum(range(1000))
with open(os.path.join({directory!r}, "effect"), "w") as file:
    file.write("it happened")
"""


@_probe("timeout: control", f"after {TIMEOUT_S:g} s the caller has control back, whatever synchronous code does")
def _timeout_control(adapter: Adapter) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as directory:
        _timed_control(adapter, directory)
        invoke = adapter.timed(_BUSY.format(seconds=WORK_S, directory=directory), directory, TIMEOUT_S)
        started = time.monotonic()
        said = _attempt(invoke, "{}")
        took = time.monotonic() - started
        _wait_out(started)
    return took < TIMEOUT_S + GRACE_S, f"control after {took:.1f} s; {said}"


@_probe("timeout: effect", "what the code would have done after its timeout does not happen")
def _timeout_effect(adapter: Adapter) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as directory:
        effect = _timed_control(adapter, directory)
        started = time.monotonic()
        _attempt(adapter.timed(_BUSY.format(seconds=WORK_S, directory=directory), directory, TIMEOUT_S), "{}")
        _wait_out(started)
        happened = os.path.exists(effect)
    return not happened, "the effect happened afterwards" if happened else "no effect"


def _timed_control(adapter: Adapter, directory: str) -> str:
    """First, that the code has its effect in time: a warm start, too. Returns the effect's path, cleared."""
    said = _attempt(adapter.timed(_BUSY.format(seconds=0, directory=directory), directory, 30.0), "{}")
    effect = os.path.join(directory, "effect")
    if not os.path.exists(effect):
        raise ControlFailed(f"the control call had no effect: {said}")
    os.unlink(effect)
    return effect


def _wait_out(started: float) -> None:
    """The code needs this long; only after it can the absence of its effect be told."""
    time.sleep(max(0.0, started + WORK_S + GRACE_S - time.monotonic()))


@_probe("output: cap", "5 MB of output reach the model as at most 200 KB, and it is told how much is missing")
def _output_cap(adapter: Adapter) -> tuple[bool, str]:
    def probe() -> str:
        """Probe."""
        return "x" * 5_000_000

    answer = adapter.typed(probe)("{}")
    told = answer.text.replace("x", "").strip()
    evidence = f"{len(answer.text)} characters reach the model, and it is told: {told[:120] or 'nothing'}"
    return len(answer.text) <= 200_000 and any(sign.isdigit() for sign in told), evidence


# ── approvals, crashes ───────────────────────────────────────────────────────────────────────────────────────────


@_probe("approval: bound to the arguments", "what was approved is what runs, or nothing does")
def _approval_bound(adapter: Adapter) -> tuple[bool, str]:
    ran: list[str] = []

    def probe(target: str) -> str:
        """Probe.

        Args:
            target: what to act on
        """
        ran.append(target)
        return "done"

    adapter.approve_then_swap("harmless", "harmless", probe)
    if ran != ["harmless"]:
        raise ControlFailed(f"the control call did not run once: {ran}")
    ran.clear()
    try:
        adapter.approve_then_swap("harmless", "harmful", probe)
    except Exception as error:  # noqa: BLE001 - a refusal may be an exception
        return "harmful" not in ran, f"refused: {type(error).__name__}: {error}"[:160]
    return "harmful" not in ran, f"ran: {ran}"


@_probe(
    "crash: at most once", "killed between effect and record, then resumed: one effect, and the model is told the truth"
)
def _crash(adapter: Adapter) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as directory:
        whole = _child(adapter, "whole", directory)
        if whole.returncode == NOT_OFFERED:
            raise NotOffered(whole.stdout.strip())
        if whole.returncode or _effects(directory) != 1:
            raise ControlFailed(f"the control run did not end with one effect: {whole.stderr.strip()[-200:]}")
    with tempfile.TemporaryDirectory() as directory:
        first = _child(adapter, "first", directory)
        if first.returncode != -signal.SIGKILL:
            raise ControlFailed(f"the first run was not killed in the tool: {first.stderr.strip()[-200:]}")
        again = _child(adapter, "again", directory)
        effects = _effects(directory)
    if again.returncode:
        return False, f"{effects} effect(s); going on failed: {again.stderr.strip()[-160:]}"
    told = Answer(**json.loads(again.stdout))
    said = told.text[:160].replace("\n", " ")
    return effects == 1 and tells_of_doubt(told), f"{effects} effect(s); the model is told: {said}"


_DOUBT = re.compile(
    r"\b(unknown|uncertain|interrupted|may have|may or may not|might have|not known|nobody knows|whether)\b",
    re.IGNORECASE,
)


def tells_of_doubt(told: Answer) -> bool:
    """Whether the model can see that nobody knows: marked as no success, in words that say so.

    The process died between the effect and its record: a plain success or "did not run" would be a guess.
    """
    return told.failed and _DOUBT.search(told.text) is not None


def _effects(directory: str) -> int:
    try:
        with open(os.path.join(directory, "effects"), encoding="utf-8") as file:
            return len(file.readlines())
    except FileNotFoundError:
        return 0


def _child(adapter: Adapter, phase: str, directory: str) -> subprocess.CompletedProcess[str]:
    kind = type(adapter)
    command = [sys.executable, "-m", "handrail_contract.child", f"{kind.__module__}:{kind.__qualname__}"]
    command += [phase, directory]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def parse(raw: str) -> Any:
    """The ordinary parser, for frameworks that take a mapping."""
    return json.loads(raw)
