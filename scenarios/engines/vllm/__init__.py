"""vLLM: its engine, its coupled draw, its weight receiver."""
