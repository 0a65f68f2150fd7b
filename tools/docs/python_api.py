"""The Markdown page of the Python package: each name in its __all__, with
signature, docstring and members.

Reads sources only. Names of the extension module come from the C++ calls that
bind them.
"""

import ast
import dataclasses
import pathlib
import re
import sys

import prose

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import cpp_scan  # noqa: E402

FOLDER = "tools/python"
OPERATORS = {"__add__": "a + b", "__sub__": "a - b", "__mul__": "a * b",
             "__truediv__": "a / b", "__pow__": "a ** b",
             "__matmul__": "a @ b", "__neg__": "-a"}


@dataclasses.dataclass
class Entry:
    """A documented name. signature: how it is called, or a property's type."""
    name: str
    signature: str
    doc: str
    members: list = dataclasses.field(default_factory=list)


def read_package(root):
    """Returns the package's docstring and an Entry per name of __all__."""
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8"))
             for path in (root / FOLDER / "fusor").glob("*.py")}
    init = trees["__init__"]
    modules, public = {}, []
    for node in init.body:
        if isinstance(node, ast.ImportFrom):
            modules |= {a.name: node.module.split(".")[-1] for a in node.names}
        elif isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            public = ast.literal_eval(node.value)
    bound = _bound_entries(root)
    doc = ast.get_docstring(init)
    # First what the package's docstring names, in that order.
    public.sort(key=lambda name: re.search(rf"See.*?\b{name}\b|$", doc).end())
    entries = []
    for name in public:
        module = trees.get(modules[name])
        entries.append(_entry(name, module) if module else bound[name])
    return doc, entries


def _entry(name, module):
    node = next(n for n in module.body if getattr(n, "name", "") == name)
    if isinstance(node, ast.FunctionDef):
        return _function(node, node.args.args)
    return _class(node, module)


def _function(node, positional):
    """positional: its arguments without `self`."""
    args = node.args
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    shown = [_argument(a, d) for a, d in zip(positional, defaults)]
    if args.vararg:
        shown.append("*" + _argument(args.vararg))
    elif args.kwonlyargs:
        shown.append("*")
    shown += [_argument(a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults)]
    if args.kwarg:
        shown.append("**" + _argument(args.kwarg))
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return Entry(node.name, _signature(node.name, shown, returns),
                 ast.get_docstring(node) or "")


def _argument(argument, default=None):
    text = argument.arg
    if argument.annotation:
        text += f": {ast.unparse(argument.annotation)}"
    if default is not None:
        text += f" = {ast.unparse(default)}"
    return text


def _signature(name, arguments, returns=""):
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= 80:
        return line
    return f"{name}(\n    " + ",\n    ".join(arguments) + f",\n){returns}"


def _class(node, module):
    classes = {n.name: n for n in module.body if isinstance(n, ast.ClassDef)}
    lineage = [node]  # with the bases in the module
    while lineage[0].bases and lineage[0].bases[0].id in classes:
        lineage.insert(0, classes[lineage[0].bases[0].id])
    base = [n.name for n in lineage[:-1] if not n.name.startswith("_")]
    if node.bases and len(lineage) == 1:
        base = [node.bases[0].id]
    doc = ast.get_docstring(node) or ""
    if base:
        doc += f"\n\nBase class: `{base[-1]}`."
    # A dataclass is called with its fields.
    fields = {item.target.id: _argument(ast.arg(item.target.id, item.annotation),
                                        item.value)
              for each in lineage for item in each.body
              if isinstance(item, ast.AnnAssign)
              and "ClassVar" not in ast.unparse(item.annotation)}
    signature = (_signature(node.name, [*fields.values()])
                 if node.decorator_list else "")
    entry = Entry(node.name, signature, doc)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and (
                item.name == "__call__" or not item.name.startswith("_")):
            member = _function(item, item.args.args[1:])
            decorators = [ast.unparse(d) for d in item.decorator_list]
            if "property" in decorators:
                member.signature = f"{item.name}: {ast.unparse(item.returns)}"
            if f"{item.name}.setter" not in decorators:
                entry.members.append(member)
    return entry


def _bound_entries(root):
    """Returns name -> Entry of what nanobind's calls in C++ declare. Functions
    without a class of their own bind members of Builder."""
    entries = {"Builder": Entry("Builder", "", "")}
    for path in sorted((root / FOLDER).glob("*.cc")):
        scan = cpp_scan.Scan(text := path.read_text(encoding="utf-8"))
        lines = text.splitlines(keepends=True)
        for _, first, count in scan.functions():
            start = len("".join(lines[:first - 1]))
            end = start + len("".join(lines[first - 1:first - 1 + count]))
            owner = entries["Builder"]
            for call in re.compile(
                    r"\b(?:[Cc]lass_?(?:<\w+>)? c|(?:c|module)\.def\w*)\("
            ).finditer(scan.code, start, end):
                made = _binding(*_arguments(text, scan.code, call.end()))
                if not made.name:  # of an operator
                    continue
                if call[0].startswith("module."):
                    entries[made.name] = made
                elif not call[0].startswith("c."):
                    owner = entries.setdefault(made.name, Entry(made.name, "", ""))
                    owner.doc = made.doc
                elif made.name == "__init__":
                    owner.signature = made.signature.replace("__init__",
                                                             owner.name)
                elif not made.name.startswith("_") and made.name not in [
                        m.name for m in owner.members]:
                    if re.search("def_(prop|ro)", call[0]):
                        made.signature = made.signature.replace("() ->", ":")
                        made.signature = made.signature.removesuffix("()")
                    owner.members.append(made)
            dunders = re.findall(r'"(__\w+__)"', text[start:end])
            operators = [OPERATORS[d] for d in dunders if d in OPERATORS]
            if operators:
                shown = ", ".join(f"`{o}`" for o in operators)
                owner.doc += f"\n\nHas the operators {shown}."
    return entries


def _arguments(text, code, position):
    """Returns the texts of a call's arguments."""
    depth, start, found = 0, position, []
    while depth >= 0:
        char = code[position]
        depth += (char in "([{") - (char in ")]}")
        if depth < 0 or depth == 0 and char == ",":
            found.append(text[start:position].strip())
            start = position + 1
        position += 1
    return found


def _strings(text):
    return "".join(ast.literal_eval(s) for s in re.findall(
        r'"(?:[^"\\]|\\.)*"', text))


def _binding(*arguments):
    """Returns the Entry of a call: name, parameters, docstring, signature."""
    name, doc, parameters, signature = "", "", [], ""
    for argument in arguments:
        parameter = re.fullmatch(r'"(\w+)"_a(?: = (.*))?', argument)
        if re.fullmatch(r'(?:"(?:[^"\\]|\\.)*"\s*)+', argument):
            name, doc = name or _strings(argument), _strings(argument)
        elif parameter:
            default = {"false": "False", "true": "True", "nb::none()": "None",
                       "Ints{}": "()"}.get(parameter[2], parameter[2])
            parameters.append(parameter[1] + (f"={default}" if default else ""))
        elif argument.startswith("nb::sig("):
            signature = re.sub(r"^def |\bself, (/, )?|self(, /)?", "",
                               _strings(argument))
    doc = "" if doc == name else doc
    return Entry(name, signature or _signature(name, parameters), doc)


def page(root):
    """Returns the page's Markdown, and name -> HTML id."""
    doc, entries = read_package(root)
    anchors, parts = {}, ["# Python interface\n", prose.from_docstring(doc)]
    for entry in entries:
        parts += _show(entry, f"fusor.{entry.name}", 2, anchors)
        for member in entry.members:
            parts += _show(member, f"fusor.{entry.name}.{member.name}", 3,
                           anchors)
    return "\n".join(p for p in parts if p), anchors


def _show(entry, full_name, level, anchors):
    anchors[full_name] = full_name.replace("__", "")
    title = prose.escape(full_name if level == 2
                         else full_name.removeprefix("fusor."))
    yield f"{'#' * level} {title} {{ #{anchors[full_name]} }}\n"
    if entry.signature:
        yield f"```python\n{entry.signature}\n```\n"
    yield prose.from_docstring(entry.doc)
