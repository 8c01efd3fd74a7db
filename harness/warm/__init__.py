"""Engines that `harness up` keeps: started once, used by the comparisons that they fit, ended by `harness down`."""
