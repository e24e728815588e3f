"""The paper's statements, each checked on a recorded run."""
