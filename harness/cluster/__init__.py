"""Start and drive runs on Ray: the cluster, one experiment, one side of it, waiting for calls."""
