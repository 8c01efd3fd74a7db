"""The hang lab: small programs that really hang, controls that only look as if they did, and the right verdict of
each.
"""
