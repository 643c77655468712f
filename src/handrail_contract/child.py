"""The process that a crash probe kills: ``python -m handrail_contract.child ADAPTER whole|first|again DIRECTORY``."""

import json
import os
import signal
import sys
from dataclasses import asdict

from handrail_contract.adapter import NotOffered
from handrail_contract.adapters import load
from handrail_contract.probes import NOT_OFFERED


def main() -> None:
    """Run one phase; the tool of the first appends its effect and dies before it can say so."""
    name, phase, directory = sys.argv[1:4]
    adapter = load(name)

    def charge() -> str:
        """Charge the card."""
        with open(os.path.join(directory, "effects"), "a", encoding="utf-8") as file:
            file.write("charged\n")
        if phase == "first":
            os.kill(os.getpid(), signal.SIGKILL)
        return "charged"

    try:
        if phase == "again":
            sys.stdout.write(json.dumps(asdict(adapter.crash_again(directory, charge))))
        else:
            adapter.crash_first(directory, charge)
    except NotOffered as reason:
        sys.stdout.write(str(reason))
        sys.exit(NOT_OFFERED)


if __name__ == "__main__":
    main()
