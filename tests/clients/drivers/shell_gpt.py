# /// script
# dependencies = ["shell-gpt==1.5.1", "click==8.1.8", "typer==0.15.4"]
#
# [tool.client]
# name = "shell-gpt"
# formats = ["chat"]
#
# [tool.client.lacks]
# whole = "it always streams"
# id = "it shows none"
# ///
"""shell-gpt on the command line; `--chat NAME` goes on with a conversation."""

from talking import Setup, run, serve

LOOK = '''from pydantic import BaseModel
class Function(BaseModel):
    """Looks at a place."""
    place: str
    @classmethod
    def execute(cls, place: str) -> str:
        return f"seen {place}"
    @classmethod
    def openai_schema(cls):
        return {"type": "function", "function": {"name": "look", "description": "Looks at a place.",
                "parameters": cls.model_json_schema()}}
'''


def opened(setup: Setup):
    home = setup.folder / ".config/shell_gpt"
    (home / "functions").mkdir(parents=True)
    (home / "functions/look.py").write_text(LOOK)
    lines = {
        "API_BASE_URL": setup.base_url,
        "OPENAI_API_KEY": "any",
        "DEFAULT_MODEL": setup.model,
        "USE_LITELLM": "false",
        "PRETTIFY_MARKDOWN": "false",
        "OPENAI_USE_FUNCTIONS": "true",
        "CHAT_CACHE_PATH": str(setup.folder / "chats"),
        "CACHE_PATH": str(setup.folder / "cache"),
        "OPENAI_FUNCTIONS_PATH": str(home / "functions"),
    }
    (home / ".sgptrc").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
    flags = ["--chat", "talk", "--no-cache", "--functions" if setup.tools else "--no-functions"]
    return lambda text: run("sgpt", *flags, text, folder=setup.folder, HOME=str(setup.folder)).strip()


serve(opened)
