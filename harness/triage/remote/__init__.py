"""Evidence of hosts that share no directory.

`serve` gives the evidence of one watch. `gather` asks several watches for theirs, and tells them to end their commands
if all evidence together shows a hang.

The transport is plain HTTP, for a network that the job's nodes share. Both sides prove that they have the same token,
which itself is never sent, and answers are authenticated too. Nothing is encrypted.
"""
