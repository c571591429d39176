# /// script
# dependencies = ["llm==0.36"]
#
# [tool.client]
# name = "llm"
# formats = ["chat"]
#
# [tool.client.lacks]
# id = "it prints the answer alone; its log has an id of its own"
# ///
"""llm on the command line, with a model of its own file; `-c` goes on with the conversation."""

from talking import Setup, run, serve

MODELS = "- model_id: rlproxy\n  model_name: {}\n  api_base: {}\n  supports_tools: true\n"
LOOK = 'def look(place: str) -> str:\n    """Looks at a place."""\n    return f"seen {place}"\n'


def opened(setup: Setup):
    (setup.folder / "extra-openai-models.yaml").write_text(MODELS.format(setup.model, setup.base_url))
    (setup.folder / "look.py").write_text(LOOK)
    flags = [] if setup.stream else ["--no-stream"]
    flags += ["--functions", str(setup.folder / "look.py")] if setup.tools else []
    goes_on = []

    def say(text):
        shown = run(
            "llm",
            "prompt",
            "-m",
            "rlproxy",
            *flags,
            *goes_on,
            text,
            folder=setup.folder,
            LLM_USER_PATH=str(setup.folder),
        )
        goes_on[:] = ["-c"]
        return shown.strip()

    return say


serve(opened)
