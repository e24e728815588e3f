"""Helpers without mathematics that several packages use."""
