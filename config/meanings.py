"""The meaning of each setting: the sentence that stands below it in its section.

Owns how it is found: in the source, when somebody asks. pydantic would look with every start
(`use_attribute_docstrings`), which is 30 ms of one.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


def meanings(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """By dotted key, as in `config.settings.fields`; empty where nothing is said."""
    texts: dict[str, str] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            texts |= meanings(field.annotation, f"{prefix}{name}.")
        else:
            texts[prefix + name] = _meaning(model, name)
    return texts


def _meaning(model: type[BaseModel], name: str) -> str:
    """It may stand where the field is inherited from."""
    ours = [section for section in model.__mro__ if section.__module__.startswith("config.")]
    return next(
        (text for section in ours if (text := _field_texts(section.__module__).get((section.__name__, name)))), ""
    )


@cache
def _field_texts(module: str) -> dict[tuple[str, str], str]:
    """The text right below a field, by class and field."""
    source = ast.parse(inspect.getsource(sys.modules[module]))
    sections = [node for node in source.body if isinstance(node, ast.ClassDef)]
    return {
        (section.name, field.target.id): inspect.cleandoc(text.value.value)
        for section in sections
        for field, text in pairwise(section.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
