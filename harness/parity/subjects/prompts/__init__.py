"""Prompts: did each engine see the token ids that it was sent?"""
