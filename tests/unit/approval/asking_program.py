"""A program for a terminal: asks one question at it and writes the decision, as JSON, into a file."""

import asyncio
import json
import os
import signal
from dataclasses import asdict

from handrail.approval.console import ConsoleApprover
from handrail.approval.decision import ApprovalRequest
from handrail.parked import GrantPattern
from handrail.tool import RiskLevel


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away is to be noticed, not to kill us
    question = json.loads(os.environ["QUESTION"])
    offer = question.pop("offer", None)
    request = ApprovalRequest(
        **{
            "approval_id": "0199-a",
            "call_id": "0199-c",
            "tool": "builtin:bash",
            "title": "bash",
            "risk": RiskLevel(question.pop("risk", "mutation")),
            "source": "built in",
            "arguments": {},
            "binding": "sha256:" + "0" * 64,
            "why": "mutation tools are asked about",
            "asked_at": 0.0,
            "expires_at": 1e12,
            "can_grant": offer is not None,
            "offer": None if offer is None else GrantPattern.from_json(offer),
            **question,
        }
    )
    approver = ConsoleApprover(by="ann", minimum_display=float(os.environ.get("MINIMUM_DISPLAY", "0.1")))
    decision = asyncio.run(approver.decide(request))
    answer = os.environ["ANSWER"]
    with open(f"{answer}.part", "w") as file:
        json.dump({"kind": type(decision).__name__, **asdict(decision)}, file)
    os.rename(f"{answer}.part", answer)
