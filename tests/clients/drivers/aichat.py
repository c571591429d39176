# /// script
# dependencies = ["pyte==0.8.2"]
#
# [tool.client]
# name = "aichat"
# formats = ["chat"]
#
# [tool.client.crates]
# aichat = "0.30.0"
#
# [tool.client.side]
# asks = "a summary after `.compress session`"
# types = ".compress session"
#
# [tool.client.lacks]
# id = "it shows none"
# ///
"""aichat on the command line; `-s NAME --save-session` goes on with a conversation."""

import json

from talking import LOOK, Setup, Terminal, run, serve

CONFIG = """model: rlproxy:{}
save_session: true
left_prompt: "you: "
highlight: false
function_calling: {}
use_tools: all
clients:
- type: openai-compatible
  name: rlproxy
  api_base: {}
  api_key: any
  models:
  - name: {}
    max_input_tokens: 100000
    supports_function_calling: {}
"""
TOOL = """#!/bin/sh
place=$(printf %s "$1" | sed 's/.*"place": *"\\([^"]*\\)".*/\\1/')
printf 'seen %s' "$place" > "$LLM_OUTPUT"
"""


def opened(setup: Setup):
    there = setup.folder / ".config/aichat"
    (there / "functions/bin").mkdir(parents=True)
    may_call = "true" if setup.tools else "false"
    (there / "config.yaml").write_text(CONFIG.format(setup.model, may_call, setup.base_url, setup.model, may_call))
    (there / "functions/functions.json").write_text(json.dumps([LOOK] if setup.tools else []))
    tool = there / "functions/bin/look"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    flags = ["-s", "talk", "--save-session", *([] if setup.stream else ["-S"])]
    if setup.side:  # only where it goes on it sums up
        there = {"folder": setup.folder, "HOME": str(setup.folder)}
        return Terminal("aichat", *flags, ready="you:", draws=True, quiet_s=5.0, **there).say
    return lambda text: run("aichat", *flags, text, folder=setup.folder, HOME=str(setup.folder))


serve(opened)
