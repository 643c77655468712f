"""Several approvers, one after the other: a rule, a program, a person."""

import inspect
from collections.abc import Awaitable, Callable

from handrail.approval.decision import ApprovalRequest, Approve, Approver, Decision, Escalate, Reject, Unavailable
from handrail.approval.rules import CompiledRules, Subject


class Chain:
    """Asks each approver in turn; only :class:`Escalate` passes the question on.

    An approver that raises, or that returns no decision, ends the chain with *no*: a broken veto must not be skipped.
    Escalating past the last one means nobody is there, which is *no* too.
    """

    def __init__(self, *approvers: Approver) -> None:
        self._approvers = approvers

    async def decide(self, request: ApprovalRequest) -> Decision:
        """The first decision that is not to escalate."""
        reasons: list[str] = []
        for approver in self._approvers:
            answer = await approver.decide(request)
            if not isinstance(answer, Escalate):
                return answer
            if answer.why:
                reasons.append(answer.why)
        return Unavailable("; ".join(["nobody in the chain decided", *reasons]))


class RuleApprover:
    """Answers by rules: ``allow`` is yes, ``deny`` is no; ``ask`` and no rule at all pass the question on.

    The rules see the call as policy saw it. They can only answer what policy asked about: a ``deny`` of policy never
    comes here.
    """

    def __init__(self, rules: CompiledRules, *, name: str = "rules") -> None:
        self._rules = rules
        self._name = name

    async def decide(self, request: ApprovalRequest) -> Decision:
        """What the strictest rule that speaks says."""
        finding = self._rules.find(_subject(request))
        if finding is None or finding.decision == "ask":
            return Escalate("" if finding is None else finding.why)
        by = f"{self._name}: {finding.rule.name}"
        return Approve(by=by) if finding.decision == "allow" else Reject(finding.why, by=by)


class Escalating:
    """A function that may decide: it returns a decision, or ``None`` to pass the question on."""

    def __init__(self, callback: Callable[[ApprovalRequest], Decision | Awaitable[Decision | None] | None]) -> None:
        self._callback = callback

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Ask the function."""
        answer = self._callback(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return Escalate() if answer is None else answer


def _subject(request: ApprovalRequest) -> Subject:
    paths = {name: (str(request.arguments[name]), resolved) for name, resolved in request.resolved_paths.items()}
    return Subject(
        (request.tool, request.title), request.risk, request.arguments, paths, request.workspace, request.staged
    )
