"""Evidence of hosts that share no directory: `serve` gives that of one watch, `gather` asks several watches for theirs.

Plain HTTP, for a network that the job's nodes share. Both sides prove that they hold one token, which itself is never
sent, and what is answered is proven too. Nothing is encrypted.
"""
