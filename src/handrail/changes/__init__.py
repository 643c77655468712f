"""Staged changes: what a call did to files, and how that becomes real, once, or is taken back.

changeset.py   ChangeSet: the data, pure
keeper.py      what others ask of the private store: Contents, ChangeKeeper
plan.py        Plan: from wishes (write, move, delete …) to a ChangeSet
diff.py        a ChangeSet for people
areas.py       which part of the store belongs to which directory, also after it was moved
store.py       ChangeStore: keeps, commits, recovers, undoes
commit.py      how a commit goes: compare, prepare, apply, finish or take back
contents.py    file contents by hash, within a limit
beneath.py     descriptor-relative file operations
"""
