"""A reward of your own: `train.reward = "~/reward.py:reward"`. Here the last answer must be JSON, and the right one."""

import json


def reward(episode):
    """A number from -1 to 1, {"reward", "comment"}, or None where there is nothing to say."""
    last = episode["turns"][-1]["text"]
    try:
        answer = json.loads(last)
    except ValueError:
        return {"reward": -1, "comment": "not JSON"}
    return 1 if answer == (episode["meta"] or {}).get("expected") else 0
