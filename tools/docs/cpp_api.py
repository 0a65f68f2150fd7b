"""Markdown pages of C++ headers: each public declaration with its comment.

Expects files formatted by clang-format, with a comment in the lines above what
it describes. Blank lines and comments separate groups of declarations.
"""

import dataclasses
import itertools
import pathlib
import re
import sys
import textwrap

import prose

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import cpp_scan  # noqa: E402

_LABEL = re.compile(r"(public|protected|private):")
_TYPE = re.compile(r"(class|struct|union|enum class|enum)\s+(\w+)\b[^;=(]*$")
_TEMPLATE = re.compile(r"template\s*<[^<>]*(<[^<>]*>[^<>]*)*>\s*")
_SINGULAR = re.compile(
    r"(?!Collectives|Overloads|Roles)[A-Z][a-z]+s\b|The same\b")
_SEPARATOR = re.compile(r"// --- (.*?) -+$")


@dataclasses.dataclass
class Declaration:
    """One declaration: kind is class, struct, union, enum, function, macro or
    other (an alias, a variable)."""
    kind: str
    name: str
    source: str  # without function bodies and private members
    body: tuple = ()  # a class's members: start and end in the text


@dataclasses.dataclass
class Group:
    """A comment and the declarations that follow it without a blank line."""
    scope: str  # "ir::" or "ir::Builder::"
    section: str = ""  # that it starts: "Elementwise"
    comment: list = dataclasses.field(default_factory=list)
    declarations: list = dataclasses.field(default_factory=list)

    def split(self):
        """Returns this group as several if its comment describes one function,
        the first: if it starts with a verb in the singular."""
        functions = [d.name for d in self.declarations if d.kind == "function"]
        if not functions or not _SINGULAR.match(" ".join(self.comment)):
            return [self]
        first = [d.name for d in self.declarations].index(functions[0])
        last = first
        while [d.name for d in self.declarations[last:last + 1]] == functions[:1]:
            last += 1
        parts = [Group(self.scope, declarations=self.declarations[:first]),
                 Group(self.scope, comment=self.comment,
                       declarations=self.declarations[first:last]),
                 Group(self.scope, declarations=self.declarations[last:])]
        return [p for p in parts if p.declarations]

    @property
    def names(self):
        return list(dict.fromkeys(d.name for d in self.declarations))


class Header:
    """The public declarations of a header.

    path: from the root of the tree.
    comment: lines of the comment that describes the file.
    groups: Group, of all namespaces.
    """

    def __init__(self, root, path):
        self.path = path
        self._text = (root / path).read_text(encoding="utf-8")
        self._code = cpp_scan.Scan(self._text).code
        self.groups = self._groups(0, len(self._text), "")
        self.comment = []
        if self.groups and not self.groups[0].declarations:
            self.comment = self.groups.pop(0).comment

    def members(self, declaration, scope):
        """Returns the groups of public members of a class."""
        return self._groups(*declaration.body, f"{scope}{declaration.name}::",
                            declaration.kind != "class")

    def _groups(self, start, end, scope, public=True):
        groups = [Group(scope)]
        position = start
        while position < end:
            gap = re.compile(r"\s*").match(self._text, position, end)[0]
            position += len(gap)
            if position == end:
                break
            if gap.count("\n") > 1 and groups[-1].comment + groups[-1].names:
                groups.append(Group(scope))
            label = _LABEL.match(self._code, position, end)
            if label:
                public = label[1] == "public"
                position = label.end()
            elif self._text.startswith("//", position):
                position = self._comment(position, groups, public)
            elif self._text.startswith("#", position):
                position = self._directive(position, groups)
            elif self._code.startswith("namespace", position):
                position = self._namespace(position, groups)
            else:
                position = self._declaration(position, groups, public)
        return [g for g in groups if g.section or g.comment or g.declarations]

    def _line_end(self, position):
        found = self._text.find("\n", position)
        return len(self._text) if found < 0 else found

    def _comment(self, position, groups, public):
        end = self._line_end(position)
        line = self._text[position:end]
        separator = _SEPARATOR.match(line)
        if public and (separator or groups[-1].declarations):
            groups.append(Group(groups[-1].scope))
        if public and separator:
            groups[-1].section = separator[1]
        elif public:
            groups[-1].comment.append(line[2:].removeprefix(" "))
        return end

    def _directive(self, position, groups):
        end = self._line_end(position)
        while self._text[end - 1] == "\\":
            end = self._line_end(end + 1)
        macro = re.compile(r"#define (\w+)(\([^)]*\))?").match(
            self._text, position)
        if macro:
            groups[-1].declarations.append(
                Declaration("macro", macro[1], macro[0]))
        return end

    def _namespace(self, position, groups):
        """Appends the groups of a namespace; ends after its brace."""
        brace = self._code.index("{", position)
        name = self._code[position:brace].split()[-1]
        end = cpp_scan.matching_brace(self._code, brace)
        inner = "::".join(n for n in name.split("::") if n != "fusor")
        scope = groups[-1].scope + (f"{inner}::" if inner else "")
        groups += self._groups(brace + 1, end, scope)
        groups.append(Group(groups[0].scope))
        return self._line_end(end)  # after "// namespace fusor::ir"

    def _end(self, position):
        """Returns where the declaration's head and the declaration end.

        The head is what precedes the body of a function or the members of a
        type; otherwise, both ends are equal.
        """
        depth, start, head = 0, position, None
        while position < len(self._code):
            char = self._code[position]
            if char in "([":
                depth += 1
            elif char in ")]":
                depth -= 1
            elif char == ";" and depth == 0:
                end = position + 1
                return (end if head is None else head), end
            elif char == "{" and depth == 0:
                before = self._code[start:position]
                kind = cpp_scan.kind_of_brace(before)
                close = cpp_scan.matching_brace(self._code, position)
                if kind == "function" and _is_function(before):
                    return position, close + 1
                if kind == "scope" and _TYPE.match(_TEMPLATE.sub("", before)):
                    head = position
                position = close
            position += 1
        raise ValueError(f"{self.path}: a declaration has no end: "
                         f"{self._text[start:start + 60]!r}")

    def _declaration(self, position, groups, public):
        head, end = self._end(position)
        line_end = self._line_end(end)
        trailing = self._text[end:line_end].strip()
        after = line_end if trailing.startswith("//") else end
        code = _TEMPLATE.sub("", self._code[position:head])
        name = _name(code)
        if not public or code.startswith("friend ") or name is None:
            return after
        kind = _TYPE.match(code)
        declaration = Declaration(
            kind[1].split()[0] if kind
            else "function" if _is_function(code) else "other",
            name, self._source(position, head, end))
        if after > end:
            declaration.source += "  " + trailing
        if kind:
            declaration.body = (head + 1, self._code.rindex("}", head, end))
        groups[-1].declarations.append(declaration)
        return after

    def _source(self, position, head, end):
        """Returns a declaration's text without what is not public."""
        code = self._code[position:head]
        line = self._text.rfind("\n", 0, position) + 1
        indent = " " * (position - line)
        if head == end:
            source = self._text[position:end]
        elif not _TYPE.match(_TEMPLATE.sub("", code)):
            # A function. Its initializers, too, are part of the body.
            initializers = re.search(r"\)\s*(?:noexcept\s*)?(:)\s", code)
            stop = position + initializers.start(1) if initializers else head
            source = self._text[position:stop].rstrip() + ";"
        else:
            last = self._code.rindex("}", head, end)
            source = (self._text[position:head + 1]
                      + self._public_body(head + 1, last, code)
                      + self._text[last:end])
        return textwrap.dedent(indent + source)

    def _public_body(self, start, end, head):
        """Returns the text of a type's members, those that are public."""
        if head.startswith("enum"):
            return self._text[start:end]
        public = not head.startswith("class")
        kept, position = "", start
        while position < end:
            gap = re.compile(r"\s*").match(self._text, position, end)[0]
            position += len(gap)
            if position == end:
                break
            label = _LABEL.match(self._code, position, end)
            if label:
                public = label[1] == "public"
                kept += gap + label[0] if public else ""
                position = label.end()
                continue
            if self._text.startswith(("//", "#"), position):
                after = self._line_end(position)
                text = self._text[position:after]
            else:
                head_end, after = self._end(position)
                text = self._source(position, head_end, after)
                text = textwrap.indent(text, gap.split("\n")[-1]).lstrip()
            kept += gap + text if public else ""
            position = after
        return kept.rstrip() + "\n" + " " * (
            end - self._text.rfind("\n", 0, end) - 1)


def _is_function(code):
    code = re.sub(r"\boperator[^\s\w(]+", "operator", code)
    return "(" in re.sub(r"<[^<>]*(<[^<>]*>[^<>]*)*>|=.*", "", code,
                         flags=re.S)


def _name(code):
    """Returns the declared name; None for a forward declaration."""
    if re.match(r"(class|struct|union|enum class|enum)\s+\w+\s*;", code):
        return None
    kind = _TYPE.match(code)
    if kind:
        return kind[2]
    alias = re.match(r"using\s+(?:\w+::)*(\w+)", code)
    if alias:
        return alias[1]
    if _is_function(code):
        plain = re.sub(r"<[^<>()]*(<[^<>]*>[^<>()]*)*>", "", code)
        found = re.search(r"(operator\s*[^\s(]+|~?\w+)\s*\(", plain)
        return found[1]
    return re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:[={;]|$)", code)[1]


def anchor(name):
    """Returns the HTML id of a declaration: "ir::Builder::Conv2d"."""
    return re.sub(r"[^\w:~]", "-", name)


def _block(declarations):
    lines = "\n".join(d.source for d in declarations)
    return f"```cpp\n{lines}\n```\n"


class Page:
    """The page of a header, and the anchors on it.

    anchors: declared name, as "ir::Builder::Conv2d" -> HTML id. Overloads share
        the id of the first one.
    types: the names of classes, structs, enums and aliases.
    """

    def __init__(self, header):
        self._header = header
        self._ids = set()
        self.anchors = {}
        self.types = set()
        parts = [f"# {header.path}\n",
                 f'```cpp\n#include "{header.path}"\n```\n',
                 prose.from_comment(header.comment)]
        parts += [self._group(group, 2) for group in header.groups]
        self.text = "\n".join(p for p in parts if p)

    def _heading(self, level, scope, names, label=""):
        """Returns a heading that each of the names is an anchor of."""
        shown = scope if level == 2 else ""
        identifiers, titles = [], []
        for name in names:
            identifier, count = anchor(scope + name), 1
            while identifier in self._ids:
                count += 1
                identifier = f"{anchor(scope + name)}-{count}"
            self._ids.add(identifier)
            self.anchors.setdefault(scope + name, identifier)
            identifiers.append(identifier)
            title = prose.escape(shown + name)
            if titles:
                title = f'<span id="{identifier}">{title}</span>'
            titles.append(title)
        return (f"{'#' * level} {label}{', '.join(titles)} "
                f"{{ #{identifiers[0]} }}\n")

    def _group(self, group, level):
        """Returns the Markdown of a group: a heading for each class, and one
        for the other declarations."""
        parts = [] if group.declarations else [prose.from_comment(group.comment)]
        for part in group.split() if group.declarations else []:
            comment = prose.from_comment(part.comment)
            for is_type, run in itertools.groupby(
                    part.declarations, lambda d: bool(d.body)):
                for declarations in [[d] for d in run] if is_type else [[*run]]:
                    parts.append(self._entry(part.scope, declarations, level,
                                             comment))
                    comment = ""
        return "\n".join(parts)

    def _entry(self, scope, declarations, level, comment):
        first = declarations[0]
        names = list(dict.fromkeys(d.name for d in declarations))
        label = f"{first.kind} " if first.body else ""
        self.types |= {scope + d.name for d in declarations
                       if d.body or d.source.startswith("using ")}
        parts = [self._heading(level, scope, names, label), comment]
        # Plain data, or a class in a class, is shown as it is written.
        if first.kind != "class" or level > 2:
            parts.append(_block(declarations))
        else:
            parts += self._members(first, scope, level + 1)
        return "\n".join(p for p in parts if p)

    def _members(self, declaration, scope, level):
        inner = level
        for group in self._header.members(declaration, scope):
            if group.section:
                title = group.section[0].upper() + group.section[1:]
                yield f"{'#' * level} {prose.escape(title)}\n"
                inner = level + 1
            yield self._group(group, inner)


def includes(root, path):
    """Returns the paths of the headers that a file includes."""
    text = (root / path).read_text(encoding="utf-8")
    return re.findall(r'#include "([^"]+)"', text)


def closure(root, header):
    """Returns the paths of a header and of all headers that it includes."""
    found, queue = [], [header]
    while queue:
        path = queue.pop(0)
        if path not in found:
            found.append(path)
            queue += includes(root, path)
    return found
