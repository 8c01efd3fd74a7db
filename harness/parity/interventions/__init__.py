"""What an intervention works with: the bench, where the search stands, and what was done."""
