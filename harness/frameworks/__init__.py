"""Jobs of the user's own framework: which one a command starts, a recording of the job, and the job on two engines.

`spec` says what a framework is; each folder is one. The hooks live in `probes.adapters`, because they run in the job's
processes. The harness never imports a framework.
"""
