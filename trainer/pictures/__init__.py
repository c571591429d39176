"""Pictures of a run: their pixels, and the tokens that stand for them."""
