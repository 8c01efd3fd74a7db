"""Stop conditions: where a response ends, and why."""
