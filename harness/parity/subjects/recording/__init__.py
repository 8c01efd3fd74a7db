"""The recording: is it whole, consistent and comparable, and what surrounded the run?"""
