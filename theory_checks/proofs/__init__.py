"""Refutations as proofs: ball arithmetic, certificates and counterexamples."""
