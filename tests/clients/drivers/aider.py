# /// script
# dependencies = ["aider-chat==0.86.2"]
#
# [tool.client]
# name = "aider"
# formats = ["chat"]
# rate = "rl:"
#
# [tool.client.lacks]
# tools = "it offers none; it edits files from the text of an answer"
# id = "it shows none"
# ///
"""aider by its own scripting interface: a coder that is told one message after another, as at its prompt."""

import os

from aider.coders import Coder
from aider.io import InputOutput
from aider.models import Model
from talking import Setup, serve


def opened(setup: Setup):
    os.environ["OPENAI_API_BASE"] = setup.base_url
    os.chdir(setup.folder)
    (setup.folder / "a.py").write_text("print(1)\n")
    io = InputOutput(yes=True, pretty=False, fancy_input=False)
    coder = Coder.create(Model(f"openai/{setup.model}"), None, io, fnames=["a.py"], use_git=False, stream=setup.stream)
    return coder.run


serve(opened)
