"""Facts: two recordings aligned by step, sample and token in one pass, and the evidence found. Nothing is judged
here.
"""
