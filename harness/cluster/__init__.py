"""Starts and drives runs on Ray: the cluster, one experiment, one side of it, and waiting for calls."""
