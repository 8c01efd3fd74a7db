"""Rules: each names causes from recordings, and covers the divergences that its own evidence removes, and no others."""
