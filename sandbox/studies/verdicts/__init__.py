"""The paper's 41 claims, what decides each, and verdicts by number on rows that were kept.

quantities     what is read off the rows of an arm: one number per seed
deciders       relations between quantities that a claim comes down to
claims         the claims, each with its decider
judge          the verdict on a claim
"""
