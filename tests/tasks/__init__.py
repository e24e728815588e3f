"""Tasks: networks, decoding, data and losses."""
