"""A framework that keeps none of the contract: what every probe must be able to see."""

import inspect
import json
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from handrail_contract.adapter import Answer, Invoke, NotOffered


class CarelessAdapter:
    """Parses with ``json``, coerces, checks nothing, waits for everything, and repeats after a crash."""

    name = "careless"
    package = "handrail"
    settings = "none"
    parses_json = True

    def typed(self, function: Callable[..., Any]) -> Invoke:
        known = inspect.signature(function).parameters

        def invoke(raw: str) -> Answer:
            given = json.loads(raw)
            return Answer(function(**{name: value for name, value in given.items() if name in known}), failed=False)

        return invoke

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        for part in schema["properties"].values():
            if "$ref" in part:
                urllib.request.urlopen(part["$ref"]).close()
        return lambda raw: Answer(function(json.loads(raw)), failed=False)

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        def invoke(raw: str) -> Answer:
            exec(source, {})
            return Answer("done", failed=False)

        return invoke

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        function(swapped)

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        function()

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        return Answer(function(), failed=False)


class GuessingAdapter(CarelessAdapter):
    """Repeats nothing after a crash, and tells the model that it went well."""

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        return Answer("charged", failed=False)


class ForgetfulAdapter(CarelessAdapter):
    """Has no words for a crash in its answer, though it marks it."""

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        return Answer("error", failed=True)


class ModestAdapter(CarelessAdapter):
    """Has no record of its own, and breaks where it is asked for a typed tool."""

    def typed(self, function: Callable[..., Any]) -> Invoke:
        raise RuntimeError("no tools here")

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        raise NotOffered("keeps no record")


class BrokenAdapter(CarelessAdapter):
    """Carries nothing out, however right it is: it keeps no promise by that."""

    def typed(self, function: Callable[..., Any]) -> Invoke:
        return lambda raw: Answer("no", failed=True)

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        raise ValueError("no schema is good enough")

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        return self.typed(print)

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        """Runs nothing."""

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        """Runs nothing."""
