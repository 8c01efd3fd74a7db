"""Native sampler: what each engine's own sampler drew, without any of our plugins."""
