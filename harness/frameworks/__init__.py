"""Jobs of the user's own framework: which framework a command starts, a recording of the job, and the job on two
engines.

`spec` defines what a framework is, and each folder is one. The hooks are in `probes.adapters`, because they run in the
job's processes. The harness never imports a framework.
"""
