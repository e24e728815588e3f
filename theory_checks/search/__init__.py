"""The adversary: searches for problems on which a statement fails."""
