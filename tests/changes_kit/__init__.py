"""What the tests of staged changes share: an independent hash of a tree, random trees, and ways to commit in one line."""
