"""The recording: whether it is whole, consistent and comparable, and what surrounded the run."""
