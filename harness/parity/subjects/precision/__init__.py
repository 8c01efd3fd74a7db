"""Precision: what rounding costs, how far an engine is from itself, and what remains in float32."""
