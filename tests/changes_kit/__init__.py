"""What the tests of staged changes share: an independent look at a tree, and commits in one line."""
