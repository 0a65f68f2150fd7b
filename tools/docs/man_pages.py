"""Manual pages, in the macros that tools/fusor/manual writes, as Markdown."""

import re

import prose

_FONT = re.compile(r"\\f([BI])(.*?)\\fR")


def _plain(text):
    return (text.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\"))


def _inline(text):
    """Converts text with fonts: bold to code, italic to emphasis."""
    parts, position = [], 0
    for match in _FONT.finditer(text):
        parts.append(prose.escape(_plain(text[position:match.start()])))
        inner = _plain(match[2])
        parts.append(f"`{inner}`" if match[1] == "B"
                     else f"*{prose.escape(inner)}*")
        position = match.end()
    return "".join(parts) + prose.escape(_plain(text[position:]))


def _with_links(text, pages):
    """Makes links of other pages' names, "fusor-train(1)"."""
    return re.sub(r"([\w-]+)\(1\)", lambda m: f"[{m[1]}(1)]({m[1]}.md)"
                  if m[1] in pages else m[0], text)


def to_markdown(text, pages):
    """Returns a page's Markdown. pages: names of all pages, for links."""
    lines, parts = text.splitlines(), []
    while lines:
        line = lines.pop(0)
        if line.startswith(".TH "):
            parts.append(f"# {line.split(chr(34))[1]}\n")
        elif line.startswith(".SH "):
            parts.append(f"## {line.split(chr(34))[1].capitalize()}\n")
        elif line == ".TP":
            tag, what = _inline(lines.pop(0)), _inline(lines.pop(0))
            parts.append(f"{tag}\n:   {_with_links(what, pages)}\n")
        elif line.startswith(".BR "):
            name = _plain(line[4:]).replace(" (", "(")
            parts.append(_with_links(name, pages) + "\n")
        else:
            parts.append(_with_links(_inline(line), pages) + "\n")
    return "\n".join(parts)
