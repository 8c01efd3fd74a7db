"""The suites of planted faults: which there are, whether the harness finds them. Reached by `harness faults` and by
`harness parity --fault` only."""
