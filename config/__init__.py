"""Settings: typed, frozen, one place. Owns defaults and where values come from; imports no other room."""

import os

# To look for pydantic's plugins, of which we have none, is to read what is said of every installed package: 0.2 s.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
