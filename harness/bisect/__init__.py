"""What turned a good comparison into a bad one: a release, a commit, or settings."""
