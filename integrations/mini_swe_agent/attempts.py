"""Attempts of mini-swe-agent at one task: each is an episode of rlproxy, and a command says if it succeeded.

    python attempts.py --task "Make the tests pass." --files ./project --check "python -m pytest -q" [--members 8]

Each attempt works in a copy of the folder with mini-swe-agent's local environment, so run it where its commands may do
no harm. Reward 1: the check ended with 0. An attempt that broke is left out. Prints a line of JSON for each.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from uuid import uuid4

os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel


def attempt(args: argparse.Namespace, episode: str) -> dict:
    """What its reward call says."""
    config = yaml.safe_load((builtin_config_dir / "default.yaml").read_text())
    base = f"{args.url}/s/{episode}/v1"
    model = {"custom_llm_provider": "openai", "api_base": base, "api_key": args.key, "temperature": args.temperature}
    told = {name: config["model"][name] for name in ("observation_template", "format_error_template")}
    with tempfile.TemporaryDirectory(prefix="attempt-") as folder:
        if args.files:
            shutil.copytree(args.files, folder, dirs_exist_ok=True)
        agent = DefaultAgent(
            LitellmTextbasedModel(model_name=args.model, model_kwargs=model, **told),
            LocalEnvironment(cwd=folder, **config.get("environment", {})),
            **{**config["agent"], "step_limit": args.steps},
        )
        try:
            agent.run(args.task)
        except Exception as error:  # it says nothing about the model
            return {"error": f"{type(error).__name__}: {error}"[:4000]}
        checked = subprocess.run(args.check, shell=True, cwd=folder, capture_output=True)  # noqa: S602  the user's
        return {"reward": float(checked.returncode == 0)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8484")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="rlproxy")
    parser.add_argument("--task", required=True)
    parser.add_argument("--check", required=True, help="a shell command; 0 is a success")
    parser.add_argument("--files", type=Path, help="a folder that each attempt gets a copy of")
    parser.add_argument("--members", type=int, default=8, help="attempts, which are a group")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--temperature", type=float, default=1.0)
    args = parser.parse_args()
    group = uuid4().hex[:12]
    for member in range(args.members):
        episode = f"{group}-{member}"
        post(args, "/rl/episodes", {"id": episode, "task": args.task[:4000]})
        said = {**attempt(args, episode), "group": group, "group_size": args.members}
        post(args, f"/rl/episodes/{episode}/reward", said)
        print(json.dumps({"episode": episode, **said}), flush=True)


def post(args: argparse.Namespace, path: str, body: dict) -> None:
    headers = {"authorization": f"Bearer {args.key}", "content-type": "application/json"}
    request = urllib.request.Request(args.url + path, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=60).close()


if __name__ == "__main__":
    main()
