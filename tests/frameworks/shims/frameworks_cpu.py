"""Loaded by every interpreter of the test environments; does something only for a job that asks with FRAMEWORKS_CPU."""

import os

if os.environ.get("FRAMEWORKS_CPU") == "openrlhf":
    import openrlhf_cpu  # noqa: F401
elif os.environ.get("FRAMEWORKS_CPU") == "trl":
    import trl_cpu  # noqa: F401
if os.environ.get("FRAMEWORKS_PLANT") == "engine-cuts":
    import cut_prompts  # noqa: F401
elif os.environ.get("FRAMEWORKS_PLANT") == "engine-warm":
    import warm_draws  # noqa: F401
