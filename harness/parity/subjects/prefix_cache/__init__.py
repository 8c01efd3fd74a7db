"""Prefix cache: does an engine use keys and values of earlier weights?"""
