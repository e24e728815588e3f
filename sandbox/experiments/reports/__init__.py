"""Results: data, tables, figures and files."""
