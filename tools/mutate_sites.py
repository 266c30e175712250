"""Every small change that can be made to the package's source, found in its syntax tree.

Six kinds of change: comparison, constant, operator, argument (one is dropped), statement (it is deleted), branch (the
condition is negated). What is left out, because no test of behavior can or should notice it, is listed in LEFT_OUT,
WORDING_CALLS and WORDING_ARGUMENTS, and in `Sites.skip` (annotations, docstrings, decorators, f-strings,
`if TYPE_CHECKING`).
"""

import ast
import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

KINDS = ("comparison", "constant", "operator", "argument", "statement", "branch")

# Files, relative to the package: benchmarks and figures promise no number or color; the rest runs on a GPU only.
LEFT_OUT = ("bench/", "cli/bench.py", "report/figures.py", "kernels/async_copy.py", "kernels/cuda_graph.py")
KERNEL_FILES = "_triton.py"

# Calls that only word a message; arguments that only word help or a picture (and strict=, a guard of zip).
WORDING_CALLS = frozenset(
    {
        "warn",
        "debug",
        "info",
        "warning",
        "error",
        "exception",
        "print",
        "echo",
        "secho",
        "say",
        "hint",
        "join",
        "Problem",
    }
)
WORDING_ARGUMENTS = frozenset(
    {
        "help",
        "description",
        "title",
        "metavar",
        "epilog",
        "short_help",
        "rich_help_panel",
        "style",
        "name",
        "message",
        "strict",
    }
)

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Site:
    """One change: in `path` (relative to the package), the text from `start` to `end` (byte offsets) becomes `new`."""

    path: str
    kind: str
    line: int
    function: str
    start: int
    end: int
    old: str
    new: str
    twin: int  # the how-manieth of equal changes in one function

    @property
    def key(self) -> str:
        """The same change keeps its key when code elsewhere changes, so a seed's draw stays mostly the same."""
        return "|".join((self.path, self.function, self.kind, self.old, self.new, str(self.twin)))

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def sites(package: Path) -> list[Site]:
    """All sites of a package, by file and place."""
    found = []
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package).as_posix()
        if not left_out(path):
            found += sites_of(path, file.read_bytes())
    return found


def left_out(path: str) -> bool:
    return path.startswith(LEFT_OUT) or path.endswith(KERNEL_FILES)


def sites_of(path: str, source: bytes) -> list[Site]:
    visitor = Sites(path, source)
    visitor.visit(ast.parse(source))
    return visitor.found


def draw(package: Path, seed: int, count: int) -> list[Site]:
    """`count` sites, as evenly from the six kinds as possible: those with the smallest hash of (seed, key)."""

    def place(site: Site) -> bytes:
        return hashlib.sha256(f"{seed}|{site.key}".encode()).digest()

    queues: dict[str, list[Site]] = {kind: [] for kind in KINDS}
    for site in sorted(sites(package), key=place, reverse=True):
        queues[site.kind].append(site)
    drawn: list[Site] = []
    while len(drawn) < count and any(queues.values()):
        queue = queues[KINDS[len(drawn) % len(KINDS)]] or max(queues.values(), key=len)
        site = queue.pop()
        if parses(site.apply((package / site.path).read_bytes())):
            drawn.append(site)
    return drawn


def parses(source: bytes) -> bool:
    try:
        compile(source, "changed", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class Sites(ast.NodeVisitor):
    """Collects the sites of one file."""

    def __init__(self, path: str, source: bytes):
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.scope: list[str] = []
        self.assigned: list[set[str]] = [set()]
        self.found: list[Site] = []
        self.counts: dict[tuple[str, ...], int] = defaultdict(int)

    def add(self, kind: str, node: ast.AST, new: ast.AST | str) -> None:
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        old = self.source[start:end].decode()
        function = ".".join(self.scope) or "<module>"
        twin = self.counts[function, kind, old, text]
        self.counts[function, kind, old, text] += 1
        self.found.append(Site(self.path, kind, node.lineno, function, start, end, old, text, twin))

    # what is not entered

    def skip(self, node: ast.AST) -> None:
        """Not behavior: annotations, decorators, f-strings, imports."""

    visit_JoinedStr = visit_Import = visit_ImportFrom = visit_Global = visit_Nonlocal = visit_Assert = skip

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any("jit" in ast.unparse(mark) for mark in node.decorator_list):
            return  # a kernel
        defaults = [value for value in (*node.args.defaults, *node.args.kw_defaults) if value]
        self.inside(node.name, [*defaults, *node.body])

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.inside(node.name, node.body)

    def inside(self, name: str, body: list[ast.AST]) -> None:
        self.scope.append(name)
        self.assigned.append(set())
        for node in body:
            self.visit(node)
        self.assigned.pop()
        self.scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("statement", node, "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, ast.Call) and not is_wording(node.value):
            self.add("statement", node, "pass")
        self.visit(node.value)

    # the six kinds

    def visit_If(self, node: ast.If) -> None:
        condition = ast.unparse(node.test)
        if "TYPE_CHECKING" in condition or "__main__" in condition:
            return
        self.add("branch", node.test, f"(not ({condition}))")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add("branch", node.test, f"(not ({ast.unparse(node.test)}))")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, operator in enumerate(node.ops):
            other = [*node.ops[:i], COMPARISONS[type(operator)](), *node.ops[i + 1 :]]
            self.add("comparison", node, ast.Compare(node.left, other, node.comparators))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", node, repr(not node.value))
        elif isinstance(node.value, int):
            self.add("constant", node, repr(node.value + 1))
        elif isinstance(node.value, float):
            self.add("constant", node, repr(node.value * 2 if node.value else 1.0))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = (ast.JoinedStr, ast.Constant)
        wording = any(
            isinstance(e, texts) and isinstance(getattr(e, "value", ""), str) for e in (node.left, node.right)
        )
        if type(node.op) in OPERATORS and not wording:  # a joined path or text cannot be divided: not worth a run
            self.add("operator", node, ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.add("operator", node, ast.BoolOp(OPERATORS[type(node.op)](), node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub | ast.Not):
            self.add("operator", node, node.operand)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("statement", node, "pass")
        if type(node.op) in OPERATORS:
            other = ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
            self.add("operator", node, ast.unparse(other))
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if is_wording(node):
            return
        for i, keyword in enumerate(node.keywords):
            if keyword.arg not in WORDING_ARGUMENTS:
                self.add("argument", node, ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :]))
        if len(node.args) > 1:
            self.add("argument", node, ast.Call(node.func, node.args[:-1], node.keywords))
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in WORDING_ARGUMENTS:
                self.visit(keyword.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == "__all__":
            return
        if isinstance(target, ast.Attribute | ast.Subscript):
            self.add("statement", node, "pass")
        elif isinstance(target, ast.Name):
            if target.id in self.assigned[-1]:  # the first one's deletion is a NameError: not worth a run
                self.add("statement", node, "pass")
            self.assigned[-1].add(target.id)
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add("statement", node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self.add("statement", node, "pass")


def is_wording(node: ast.Call) -> bool:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in WORDING_CALLS
