"""Who is slow in a job that goes on: who keeps the others waiting in their collectives, by how much, and how often.

`rounds` reads from flight recorder dumps when each rank came to each collective. `clocks` bounds how far the clocks of
two hosts are apart. `standard` says when a rank is called slow. `groups` puts these together for all groups of a job,
and separates a slow rank from those that it makes late in other groups. `counters` says what a slow rank used
meanwhile. Nothing here looks at a job.
"""

from harness.triage.slow.groups import Ranking, rank_groups

__all__ = ["Ranking", "rank_groups"]
