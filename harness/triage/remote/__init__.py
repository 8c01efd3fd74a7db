"""Evidence of hosts that share no directory: `serve` gives that of one watch, `gather` asks several watches for theirs,
and tells those that end a job that hangs when all evidence together says so.

Plain HTTP, for a network that the job's nodes share. Both sides prove that they hold one token, which itself is never
sent, and what is answered is proven too. Nothing is encrypted.
"""
