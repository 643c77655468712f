"""Where trees are made: in memory where the machine offers it, because these tests flush to disk at every step."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = "/dev/shm"


@contextmanager
def quick_directory(*, for_cells: bool = False) -> Generator[Path, None, None]:
    """A fresh private directory. Cells have a ``/dev`` of their own, so what they are to see lies elsewhere."""
    base = _MEMORY if os.access(_MEMORY, os.W_OK) and not for_cells else None
    path = Path(tempfile.mkdtemp(prefix="handrail-test-", dir=base))
    try:
        yield path
    finally:
        for above, _, _ in os.walk(path):
            if not os.path.islink(above):
                os.chmod(above, 0o700)
        shutil.rmtree(path)
