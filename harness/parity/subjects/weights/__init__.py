"""Weights: does an engine compute with the weights of its learner?"""
