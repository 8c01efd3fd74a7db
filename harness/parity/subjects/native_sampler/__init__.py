"""Native sampler: what each engine's own sampler drew, with none of our plugins loaded."""
