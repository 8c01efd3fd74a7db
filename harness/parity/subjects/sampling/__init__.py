"""Sampling: were both engines asked for the same, given the same, and did they draw the same tokens?"""
