"""Staged changes: what a call did to files, and how that becomes real, once, or is taken back.

changeset.py   ChangeSet: the data, pure
keeper.py      what others ask of the private store: Contents, ChangeKeeper
"""
