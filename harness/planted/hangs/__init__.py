"""The planted hangs, run under the watchdog and scored."""
