"""Every regular expression of the product, and how the product calls each.

Owns the search for them. Modules are imported, and their values are looked through: patterns, bound methods of
patterns, and both inside containers, records, and classes. The source is read for patterns inside functions, and for
the methods by which each name is called. Not here: texts to try them with (`near_misses`).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from proxy.conversation.same_text import _many_marks
from proxy.relay.json_splice import _after_comma, _member

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("config", "store", "proxy", "trainer")
METHODS: Final = frozenset({"search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split"})
OWN_TEXTS: Final = ("store.postgres.translation",)  # modules that read the product's own SQL, and nobody's text
_DEEPEST: Final = 6  # containers inside containers
# Patterns that a function puts together: how it is called, and some that it makes. None: its results are found.
ASSEMBLED: Final[dict[str, tuple[str, list[re.Pattern[Any]]] | None]] = {
    "proxy.cli.doctor.bundle._anonymous": ("sub", [re.compile(rf"(?<!\w){name}(?!\w)") for name in ("ann@a", "a")]),
    "proxy.conversation.same_text._many_marks": ("sub", [_many_marks()]),
    "proxy.conversation.secret_shapes._shape": None,
    "proxy.conversation.turns._search": None,
    "proxy.relay.json_splice._after_comma": ("sub", [_after_comma(b'"id":')]),
    "proxy.relay.json_splice._member": ("sub", [_member(b'"id":')]),
    "proxy.signals.questions._verbatim": ("search", [re.compile(r"a\s+a\s+b"), re.compile(r"use\s+tabs\s+please")]),
}


class Use(NamedTuple):
    """A pattern, and the methods by which the product calls it."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


class Call(NamedTuple):
    """A call of `re` in the source. `pattern` is None where it is put together when it runs."""

    module: str
    function: str  # the outermost; empty at the level of the module
    method: str
    pattern: re.Pattern[Any] | None


class Source(NamedTuple):
    """Patterns and calls in the source of one module."""

    calls: tuple[Call, ...]
    methods: Mapping[str, frozenset[str]]  # by the last name before the dot
    loose: frozenset[str]  # names that are used without a method: given to others, put into a tuple


def modules() -> Iterator[ModuleType]:
    """Import each module of the product. One that needs a library of another machine is left to `sources`."""
    for room in ROOMS:
        package = importlib.import_module(room)
        yield package
        for info in pkgutil.walk_packages(package.__path__, f"{room}."):
            if info.name.endswith("__main__"):
                continue
            try:
                yield importlib.import_module(info.name)
            except ModuleNotFoundError as error:
                if str(error.name).partition(".")[0] in ROOMS:
                    raise


@cache
def sources() -> dict[str, Source]:
    """The source of each module by the module's name."""
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {_name(path): _read(_name(path), ast.parse(path.read_text())) for path in paths}


def uses() -> list[Use]:
    """Every pattern that a module holds, each once, and every constant one inside a function. Of a module that cannot
    be imported here, all constant ones."""
    read, imported = sources(), set()
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for source in read.values():
        for name, methods in source.methods.items():
            fields[name] |= methods
    patterns: dict[tuple[str, int], Use] = {}
    for module in modules():
        imported.add(module.__name__)
        source = read[module.__name__]
        for path, value in _values(module):
            pattern, methods = _called(value, path, source, fields)
            key = (repr(pattern.pattern), pattern.flags)
            place = patterns[key].place if key in patterns else f"{module.__name__}.{path}"
            stored_methods = patterns[key].methods if key in patterns else frozenset()
            patterns[key] = Use(place, pattern, methods | stored_methods)
    constants = [
        Use(f"{call.module}.{call.function}", call.pattern, METHODS & {call.method} or METHODS)
        for source in read.values()
        for call in source.calls
        if call.pattern is not None and (call.function or call.module not in imported)
    ]
    every_use = [*patterns.values(), *constants]
    return [use for use in every_use if not use.place.startswith(OWN_TEXTS)]


def _called(
    value: Any, path: str, source: Source, fields: Mapping[str, set[str]]
) -> tuple[re.Pattern[Any], frozenset[str]]:
    """The pattern of a value, and the methods by which it is called: all of them where its name is used without one."""
    if not isinstance(value, re.Pattern):
        return value.__self__, frozenset({value.__name__})
    name, field = re.split(r"[.\[]", path)[0], path.rpartition(".")[2]
    if name == path:
        return value, METHODS if name in source.loose else source.methods.get(name, frozenset())
    return value, frozenset(fields[field] & METHODS) or METHODS


def everything() -> list[Use]:
    """All of these, and what functions put together."""
    assembled = [
        Use(place, pattern, frozenset({row[0]})) for place, row in ASSEMBLED.items() if row for pattern in row[1]
    ]
    return [*uses(), *assembled]


def assembled() -> set[str]:
    """Where a function puts a pattern together: `module.function`."""
    calls = (call for source in sources().values() for call in source.calls)
    return {f"{call.module}.{call.function}" for call in calls if call.function and call.pattern is None}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _values(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Every pattern or bound method of one that a module owns, with its path."""
    visited: set[int] = set()
    for name, value in vars(module).items():
        if not name.startswith("__"):
            yield from _inside(name, value, module.__name__, visited, 0)


def _inside(path: str, value: Any, module: str, visited: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, re.Pattern) or isinstance(getattr(value, "__self__", None), re.Pattern):
        yield path, value
        return
    if depth > _DEEPEST or id(value) in visited or isinstance(value, ModuleType | str | bytes | int | float):
        return
    visited.add(id(value))
    for name, item in _members(value, module):
        yield from _inside(f"{path}{name}", item, module, visited, depth + 1)


def _members(value: Any, module: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value))
    elif hasattr(value, "_fields"):
        yield from ((f".{name}", getattr(value, name, None)) for name in value._fields)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif inspect.isclass(value):
        if value.__module__ == module:
            yield from ((f".{name}", item) for name, item in vars(value).items() if not name.startswith("__"))
    elif inspect.isfunction(value):
        closure = value.__closure__ or ()
        cells = (cell.cell_contents for cell in closure if cell.cell_contents is not value)
        yield from ((f".<{index}>", item) for index, item in enumerate((*cells, *(value.__defaults__ or ()))))


class _Reader(ast.NodeVisitor):
    def __init__(self, module: str) -> None:
        self.module = module
        self.functions: list[str] = []
        self.calls: list[Call] = []
        self.methods: defaultdict[str, set[str]] = defaultdict(set)
        self.loose: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.functions.append(node.name)
        self.generic_visit(node)
        self.functions.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.functions.append(node.name)
        self.generic_visit(node)
        self.functions.pop()

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(value=ast.Name(id="re"), attr=method) if method in METHODS or method == "compile":
                self.calls.append(Call(self.module, next(iter(self.functions), ""), method, _constant(node)))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        match node.value:
            case ast.Name(id=name) | ast.Attribute(attr=name) if node.attr in METHODS:
                self.methods[name].add(node.attr)
                if isinstance(node.value, ast.Name):
                    return
            case ast.Name():
                return  # of a record, a module
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.loose.add(node.id)


def _constant(node: ast.Call) -> re.Pattern[Any] | None:
    match node.args[0]:
        case ast.Constant(value=str() | bytes() as pattern):
            nodes = (*node.args[1:], *(word.value for word in node.keywords if word.arg == "flags"))
            flags = [word for argument in nodes for word in ast.walk(argument) if isinstance(word, ast.Attribute)]
            total = re.RegexFlag(0)
            for flag in flags:
                if isinstance(flag.value, ast.Name) and flag.value.id == "re":
                    total |= getattr(re, flag.attr)
            return re.compile(pattern, total)
    return None


def _read(module: str, tree: ast.Module) -> Source:
    reader = _Reader(module)
    reader.visit(tree)
    methods = {name: frozenset(uses) for name, uses in reader.methods.items()}
    return Source(tuple(reader.calls), methods, frozenset(reader.loose))
