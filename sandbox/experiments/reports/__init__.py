"""Showing: results, tables, figures and the files of a comparison."""
