"""Interventions: the bench, the state of the search, and a record of what was done."""
