"""A SQLite VFS that passes by a fault point at each write and flush, counts flushes, and can fail them."""

import apsw

from handrail import faults


class FaultyVFS(apsw.VFS):
    def __init__(self, name: str = "faulty") -> None:
        self.vfs_name = name
        self.flushes = 0
        self.fail_flush = False
        super().__init__(name, "")

    def xOpen(self, name, flags):
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVFS, name, flags) -> None:
        self._owner = vfs
        super().__init__("", name, flags)

    def xWrite(self, data, offset):
        faults.point("sqlite.write")
        super().xWrite(data, offset)

    def xSync(self, flags):
        faults.point("sqlite.flush")
        self._owner.flushes += 1
        if self._owner.fail_flush:
            raise apsw.IOError("the disk is gone")
        super().xSync(flags)
        faults.point("sqlite.flushed")
