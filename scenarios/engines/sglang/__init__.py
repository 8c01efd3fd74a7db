"""SGLang: its engine, its coupled draw, its plugin."""
