"""How dense the code is: one thought a line. The bounds only come down."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "retina_dist"
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
BRANCHING = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}

# Of 1,000 lines of code; torchtitan, detectron2 and rf-detr have 7 to 10 conditional expressions
# and 13 to 28 comprehensions.
MAX_OF_1000_LINES = {
    "conditional expression": 12,
    "comprehension": 25,
    "tuple assignment": 3,
    "walrus": 1,
    "lambda": 3,
    "times a truth value": 0,
}
MAX_TOKENS = 236_242
# How many functions or lines may exceed a bound.
MAX_FUNCTIONS_ABOVE_12_BRANCHES = 0
MAX_FUNCTIONS_ABOVE_60_LINES = 0
MAX_FUNCTIONS_ABOVE_8_ARGUMENTS = 0
MAX_LINES_ABOVE_100_COLUMNS = 0


def docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return lines


def is_truth(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    return isinstance(node, ast.Compare | ast.BoolOp)


def kind_of(node: ast.AST) -> str:
    """The name of an expression that holds several thoughts, "" of any other."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return "times a truth value" if is_truth(node.left) or is_truth(node.right) else ""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        return "tuple assignment" if isinstance(node.value, ast.Tuple) else ""
    if isinstance(node, COMPREHENSIONS):
        return "comprehension"
    names = {ast.IfExp: "conditional expression", ast.NamedExpr: "walrus", ast.Lambda: "lambda"}
    return names.get(type(node), "")


def branches(function: ast.AST) -> int:
    count = 1
    for node in ast.walk(function):
        if isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, BRANCHING):
            count += 1
    return count


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, FUNCTIONS):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}", node


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [argument for argument in every if argument.arg not in ("self", "cls")]


@pytest.fixture(scope="module")
def counted() -> Counter[str]:
    """Lines of code, tokens and dense expressions, without docstrings and comments."""
    total: Counter[str] = Counter()
    for path in FILES:
        text = path.read_text()
        tree = ast.parse(text)
        documented = docstring_lines(tree)
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip() and not line.strip().startswith("#") and number not in documented:
                total["lines"] += 1
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in LAYOUT and token.start[0] not in documented:
                total["tokens"] += 1
        total.update(filter(None, map(kind_of, ast.walk(tree))))
    return total


@pytest.mark.parametrize("kind", MAX_OF_1000_LINES)
def test_dense_expressions_are_rare(kind: str, counted: Counter[str]) -> None:
    assert 1000 * counted[kind] / counted["lines"] <= MAX_OF_1000_LINES[kind]


def test_the_package_does_not_grow(counted: Counter[str]) -> None:
    assert counted["tokens"] <= MAX_TOKENS


def test_functions_have_few_branches() -> None:
    over = [name for name, node in functions() if branches(node) > 12]
    assert len(over) <= MAX_FUNCTIONS_ABOVE_12_BRANCHES, over


def test_functions_are_short() -> None:
    over = [n for n, node in functions() if (node.end_lineno or 0) - node.lineno + 1 > 60]
    assert len(over) <= MAX_FUNCTIONS_ABOVE_60_LINES, over


def test_functions_have_few_arguments() -> None:
    over = [name for name, node in functions() if len(arguments(node)) > 8]
    assert len(over) <= MAX_FUNCTIONS_ABOVE_8_ARGUMENTS, over


def test_lines_are_narrow() -> None:
    over = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > 100
    ]
    assert len(over) <= MAX_LINES_ABOVE_100_COLUMNS, over[:20]
