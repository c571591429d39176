"""The user's own checks of versions: prompts, what must hold of the answers, and what came of it."""
