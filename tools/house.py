"""The house rules as functions: each checks one module and yields the places that break the rule."""

import ast
import io
import re
import tokenize
from collections.abc import Container, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
DURABLE = "plumbing/durable.py"
SYNC_CALLS = {"fsync", "fdatasync"}
MAY_PRINT = re.compile(r"(veen|veil)/cli(/|\.py)")
CORE = "veen/core/"
LIMITS = "veen/core/limits.py"
FIRST_BOUND = 1024
INTEGER_WIDTHS = {16, 32, 64}
# Words of a private idiom that readers had to read twice. docs/glossary.md has the terms to use instead.
IDIOM = re.compile(
    r"\b(whoever|whomever|heeds?|heeded|anew|thereof|therein|papers|for want of|held against|c[ao]me to pass|taken up|"
    r"gone through|(?:is|are|be|was|were) (?:told|heard)|hears|believe[sd]?|leave to (?:write|read|send)|"
    r"(?:its|their|the hub's) word|(?:is|are) of no use|goes by|mend(?:s|ed)?)\b",
    re.IGNORECASE,
)
# A sentence that starts with a subordinate clause or a genitive. A question may.
CLAUSE_FIRST = re.compile(r"(?:\A|[.:!?]\s+|\n\s*\n\s*)((?:What(?:ever)?|Who|Whose|Where|Of|So many)\s)(?![^.?]*\?)")
BARE_SILENCER = re.compile(r"#\s*(noqa(?!:\s*[A-Z])|type:\s*ignore(?!\[))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Module:
    """A source file and its tree; `path` is relative to the source folder, with forward slashes."""

    path: str
    text: str
    tree: ast.Module

    def at(self, line: int, fault: str) -> str:
        return f"{self.path}:{line}: {fault}"


def parse(path: str, text: str) -> Module:
    return Module(path, text, ast.parse(text, path))


def modules(source: Path) -> list[Module]:
    """Every module under `source`; there must be at least one."""
    found = [parse(file.relative_to(source).as_posix(), file.read_text("utf-8")) for file in source.rglob("*.py")]
    assert found, f"no modules under {source}"
    return sorted(found, key=lambda module: module.path)


def vague_name(module: Module) -> Iterator[str]:
    for part in Path(module.path).with_suffix("").parts:
        if part in VAGUE_NAMES:
            yield module.at(1, f"'{part}' is vague: name what the module contains")


def idiom(module: Module) -> Iterator[str]:
    """Words of the list, also in pages, of which only the text is looked at."""
    for number, line in enumerate(module.text.splitlines(), 1):
        for found in IDIOM.finditer(line):
            yield module.at(number, f"'{found[0]}': write it in plain words, see docs/glossary.md")


def clause_first(module: Module) -> Iterator[str]:
    """Sentences of docstrings and of comments on lines of their own start with a subject."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(module.tree):
        text = ast.get_docstring(node) if isinstance(node, documented) else None
        for said in CLAUSE_FIRST.findall(text or ""):
            yield module.at(getattr(node, "lineno", 1), f"a docstring says '{said}…': start with the subject")
    for number, line in enumerate(module.text.splitlines(), 1):
        comment = line.lstrip()
        for said in CLAUSE_FIRST.findall(comment[2:]) if comment.startswith("# ") else ():
            yield module.at(number, f"a comment says '{said}…': start with the subject")


def no_docstring(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield module.at(1, "no module docstring")


def sync_outside_durable(module: Module) -> Iterator[str]:
    """One module has the durable writes, and documents what a power cut leaves of each."""
    if module.path == DURABLE:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names = {node.attr}
        else:
            continue
        for name in sorted(names & SYNC_CALLS):
            yield module.at(node.lineno, f"{name} outside {DURABLE}")


def print_outside_cli(module: Module) -> Iterator[str]:
    if MAY_PRINT.match(module.path):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield module.at(node.lineno, "print outside the command line")


def swallowed_exception(module: Module) -> Iterator[str]:
    """An empty handler for every exception hides bugs."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and all(map(_is_empty, node.body)):
            yield module.at(node.lineno, "catches every exception and does nothing")
        elif isinstance(node, ast.Call) and _last_name(node.func) == "suppress" and any(map(_catches_all, node.args)):
            yield module.at(node.lineno, "suppresses every exception")


def _catches_all(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_catches_all, caught.elts))
    return caught is None or _last_name(caught) in {"Exception", "BaseException"}


def _is_empty(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass | ast.Continue)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def silencer_without_code(module: Module) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT and BARE_SILENCER.search(token.string):
            yield module.at(token.start[0], f"'{token.string}' names no rule")


def unsorted_all(module: Module) -> Iterator[str]:
    for node in module.tree.body:
        target, value = None, None
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign):
            target, value = node.target, node.value
        if target is not None and value is not None and _last_name(target) == "__all__":
            names = list(ast.literal_eval(value))
            if names != sorted(names):
                yield module.at(node.lineno, "__all__ is not sorted")


def loose_dataclass(module: Module) -> Iterator[str]:
    """Objects of the core are immutable."""
    if not module.path.startswith(CORE):
        return
    for node in ast.walk(module.tree):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else []:
            call = decorator if isinstance(decorator, ast.Call) else None
            if _last_name(call.func if call else decorator) == "dataclass":
                set_true = {word.arg for word in call.keywords if _is_true(word.value)} if call else set()
                if not {"frozen", "slots"} <= set_true:
                    yield module.at(decorator.lineno, "a dataclass in the core must be frozen and have slots")


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def bound_outside_limits(module: Module) -> Iterator[str]:
    """Decimal numbers from 1024 on are limits. Hex is for wire values and masks, 1 << 64 for an integer's width."""
    if not module.path.startswith(CORE) or module.path == LIMITS:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= FIRST_BOUND:
            written = ast.get_source_segment(module.text, node) or ""
            if not written.lower().startswith("0x"):
                yield module.at(node.lineno, f"{written} belongs in {LIMITS}")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.Pow):
            written = ast.unparse(node)
            if _is_large_power(node) and _constant(node.right) not in INTEGER_WIDTHS:
                yield module.at(node.lineno, f"{written} belongs in {LIMITS}")


def _is_large_power(node: ast.BinOp) -> bool:
    left, right = _constant(node.left), _constant(node.right)
    if left is None or right is None or right < 0:
        return False
    return (left << right if isinstance(node.op, ast.LShift) else left**right) >= FIRST_BOUND


def _constant(node: ast.expr) -> int | None:
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def os_beyond_urandom(module: Module) -> Iterator[str]:
    """The import contract allows `os` in the core for randomness only."""
    if not module.path.startswith(CORE):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            names = {node.attr}
        else:
            continue
        for name in sorted(names - {"urandom"}):
            yield module.at(node.lineno, f"os.{name} in the core")


def import_cycle(modules: list[Module]) -> list[str]:
    """The modules of one cycle of imports at the top of files. Which module starts it decides whether it fails."""
    by_name = {
        module.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in modules
    }
    graph = {name: _top_imports(module.tree.body, by_name) - {name} for name, module in by_name.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _top_imports(body: list[ast.stmt], known: Container[str]) -> set[str]:
    found: set[str] = set()
    for node in body:
        match node:
            case ast.Import(names):
                found |= {one.name for one in names if one.name in known}
            case ast.ImportFrom(module=str(parent), names=names) if parent in known:
                found |= {child if (child := f"{parent}.{one.name}") in known else parent for one in names}
            case ast.If(test=ast.Name("TYPE_CHECKING"), orelse=block) | ast.Try(body=block) | ast.If(body=block):
                found |= _top_imports(block, known)
    return found
