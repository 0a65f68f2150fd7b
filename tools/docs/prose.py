"""Plain text of comments as Markdown."""

import re
import textwrap

_ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): ", re.M)
# Matches words that are shown as code: qualified names, enumerators, calls, files.
_CODE = re.compile(
    r"(`[^`]+`)|((?:\w+::)+~?\w+|\bk[A-Z]\w+|\bFUSOR_\w+|\b\w+\(\)"
    r"|\bfusor\.\w+(?:\(\))?"
    r"|\b[\w/]+/\w+\.(?:h|cc|md|proto)\b)")


def escape(text):
    """Escapes what Markdown would interpret, except in `code`."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [
        re.sub(r"([\\*_{}\[\]`|])", r"\\\1", part).replace("&", "&amp;")
        .replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def _prose(text):
    return escape(_CODE.sub(lambda m: m[1] or f"`{m[2]}`", text))


def from_comment(lines):
    """Returns a comment's lines as Markdown. Indented lines are code, and lines
    that begin with "- " a list."""
    blocks, kind = [], ""
    for line in lines:
        if not line.strip():
            kind = ""
            continue
        before, kind = kind, _kind(line, kind)
        if kind != before:
            blocks.append((kind, []))
        blocks[-1][1].append(line)
    parts = []
    for kind, block in blocks:
        if kind == "code":
            indent = min(len(b) - len(b.lstrip()) for b in block)
            code = "\n".join(b[indent:] for b in block)
            parts.append(f"```cpp\n{code}\n```\n")
        elif kind == "list":
            parts.append("\n".join(
                "- " + _prose(b[2:]) if b.startswith("- ")
                else "    " + _prose(b.strip()) for b in block) + "\n")
        else:
            parts.append("\n".join(_prose(b) for b in block) + "\n")
    return "\n".join(parts)


def _kind(line, before):
    if line.startswith("- "):
        return "list"
    if line.startswith("  "):
        return "list" if before == "list" else "code"
    return "text"


def from_docstring(text):
    """Returns a docstring as Markdown. A paragraph that begins with `name: ` is
    a list of arguments."""
    parts = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            parts.append(f"```python\n{textwrap.dedent(paragraph)}\n```\n")
        elif _ARGUMENT.match(paragraph):
            paragraph = re.sub(r"\n\s+", " ", paragraph)
            names = _ARGUMENT.split(paragraph)[1:]
            parts.append("".join(
                "- " + ", ".join(f"`{n}`" for n in name.split(", "))
                + f": {_prose(' '.join(what.split()))}\n"
                for name, what in zip(names[::2], names[1::2])))
        else:
            parts.append(_prose(paragraph) + "\n")
    return "\n".join(parts)
