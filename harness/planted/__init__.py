"""Run and score the suites of planted faults. Only `harness faults` and `harness parity --fault` use this package."""
