"""What the host executes: finds the package around this file, and starts the keeper, who forks the zygote.

It holds no more than that, because what is executed is compiled at every start, and what a compiler has needed once,
every fork of the process pays for. All else is imported as it was compiled before.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from handrail_cell import zygote

if __name__ == "__main__":
    zygote.main()
