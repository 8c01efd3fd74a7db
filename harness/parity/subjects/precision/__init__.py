"""Precision: the cost of rounding, the distance of an engine from itself, and what remains in float32."""
