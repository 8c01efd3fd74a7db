"""The hang lab: small programs that really hang, controls that only look like it, and what is true of each."""
