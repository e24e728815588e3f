"""The house's rules: imports point one way, and no module imports another one's private names."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("sandbox", "variants", "theory_checks")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}


def imported(path):
    """(module, name, line) of every import, also inside functions and for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name, node.lineno) for alias in node.names)


def targets(path):
    """The modules of ours that a file imports."""
    for module, name, _ in imported(path):
        whole = f"{module}.{name}"
        if whole in MODULES:
            yield whole
        elif module in MODULES:
            yield module


def circles(arrows):
    """Strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in arrows[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                component.append(stack.pop())
                if component[-1] == node:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for node in arrows:
        if node not in index:
            visit(node)
    return found


def test_no_module_imports_itself_by_way_of_others():
    """A package's own `__init__`, which only collects names, is no arrow."""
    arrows = {name: {t for t in targets(path) if t != name and not name.startswith(t + ".")} for name, path in MODULES.items()}
    assert circles(arrows) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_no_module_uses_another_ones_private_names():
    private = [
        f"{path.relative_to(ROOT)}:{line} {name} of {module}"
        for path in FILES
        for module, name, line in imported(path)
        if name and name.startswith("_") and not name.startswith("__") and module.split(".")[0] in PACKAGES
    ]
    assert private == []


# Where private names of torch may be taken from torch, a file for each subsystem.
FENCES = {
    "sandbox/backends/inductor/private.py": "the compiler",
    "sandbox/distributed/private.py": "DTensors, device meshes, process groups",
    "sandbox/optimizer/torch_base.py": "torch.optim",
    "sandbox/utils/private_torch.py": "everything else",
}


def own_names(trees):
    """Private names that the packages themselves give to attributes, functions and variables."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.id if isinstance(node, ast.Name) else node.attr


def private_names(tree, own):
    """(name, line) of private names that a file takes from others: imported, as an attribute or by `getattr`; operators of
    `torch.ops` are no names of Python, and attributes of self, os and sys are not torch's."""
    for node in ast.walk(tree):
        parts, where = [], ""
        if isinstance(node, ast.Import):
            parts = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "functorch"):
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            parts, where = [node.attr], ast.unparse(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr") and len(node.args) > 1:
            parts, where = [getattr(node.args[1], "value", "")], ast.unparse(node.args[0])
        outside = where not in ("self", "cls", "os", "sys", "pool", "super()") and where.split(".")[-1].lower() != "aten"
        for part in parts if outside else ():
            if isinstance(part, str) and part.startswith("_") and not part.startswith("__") and part not in own:
                yield part, node.lineno


def test_private_names_of_torch_are_behind_fences():
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}
    own = set(own_names(tree for file, tree in trees.items() if file not in FENCES))
    files = {file: [f"{file}:{line} {name}" for name, line in private_names(tree, own)] for file, tree in trees.items()}
    assert [name for file, names in files.items() if file not in FENCES for name in names] == []
    assert [file for file in FENCES if not files[file]] == []
    assert [name for name, _ in private_names(ast.parse("import torch\ntorch._C._x\nfrom torch import _y"), set())] != []
