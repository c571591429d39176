"""rlproxy beside ReinforceClaw and a plain REINFORCE."""
