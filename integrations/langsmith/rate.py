"""Asks one question, and rates the answer with LangSmith's own client: `python rate.py`. RLPROXY_URL says where."""

import json
import os
import uuid

import requests
from langsmith import Client

URL = os.environ.get("RLPROXY_URL", "http://127.0.0.1:8484")
KEY = os.environ.get("RLPROXY_KEY", "none")

id = uuid.uuid4()
question = {"model": os.environ.get("MODEL", "default"), "messages": [{"role": "user", "content": "hi"}]}
headers = {"authorization": f"Bearer {KEY}", "x-rl-completion-id": str(id)}
answer = requests.post(f"{URL}/v1/chat/completions", json=question, headers=headers, timeout=600)
answer.raise_for_status()
print(json.dumps({"answer": answer.json()["choices"][0]["message"]["content"]}))

client = Client(api_url=f"{URL}/v1", api_key=KEY)
client.create_feedback(run_id=id, key="user_score", score=1, comment="so kind")
print(json.dumps({"rated": str(id)}))
