"""Finds code and function bodies in C++ files without parsing.

Blanks comments and literals, then matches braces. Expects files formatted by
clang-format.
"""

import re

_TOKEN = re.compile(
    r"""//(?:[^\n\\]|\\.|\\\n)*            # line comment
      | /\*.*?\*/                          # block comment
      | (?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"
      | "(?:[^"\\\n]|\\.|\\\n)*"           # string
      | (?<![0-9a-fA-F_])'(?:[^'\\\n]|\\.)+'   # character, not 1'000
    """, re.S | re.X)

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*", re.M)


class Scan:
    """One C++ source.

    code: the source with comments blank, strings as "" and characters as ' ',
        of the same length and with the same line breaks.
    """

    def __init__(self, text):
        self._raw_lines = set()  # lines inside raw strings
        text = _INCLUDE.sub(lambda m: " " * len(m[0]), text)
        self._text = text
        self.code = _TOKEN.sub(self._blank, text)

    def _blank(self, match):
        token = match[0]
        if token.startswith("/"):
            return re.sub(r"[^\n]", " ", token)
        if 'R"' in token[:4]:
            first = self._line(match.start())
            self._raw_lines.update(
                range(first + 1, first + token.count("\n") + 1))
        blank = re.sub(r"[^\n]", " ", token)
        if token.startswith("'"):
            return "'" + blank[1:-1] + "'"
        # Adjacent quotes, so that patterns can match a literal as "".
        return '""' + blank[2:]

    def _line(self, position):
        return self._text.count("\n", 0, position) + 1

    def functions(self):
        """Returns (name, first line, number of lines) of every function body.

        Finds functions of namespaces and classes, and lambdas in tables.
        Lambdas and local classes inside a function are part of it. Does not
        count lines inside raw strings.
        """
        code = _blank_directives(self.code)
        line_of = _line_index(code)
        found = []
        position = start = 0  # start: where the current declaration begins
        while position < len(code):
            char = code[position]
            if char in ";}":
                start = position + 1
            elif char == "{":
                kind = kind_of_brace(code[start:position])
                if kind == "function":
                    end = matching_brace(code, position)
                    found.append(
                        self._measure(code, start, position, end, line_of))
                    start = end + 1
                    position = end
                elif kind == "member":
                    position = matching_brace(code, position)
                else:
                    start = position + 1
            position += 1
        return found

    def _measure(self, code, start, brace, end, line_of):
        declaration = code[start:brace]
        lead = len(declaration) - len(declaration.lstrip())
        first, last = line_of(start + lead), line_of(end)
        raw = sum(1 for line in self._raw_lines if first <= line <= last)
        return _name(declaration), first, last - first + 1 - raw


def _blank_directives(code):
    """Blanks preprocessor lines with their continuations."""
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*",
                  lambda m: re.sub(r"[^\n]", " ", m[0]), code, flags=re.M)


def _line_index(code):
    breaks = [i for i, c in enumerate(code) if c == "\n"]

    def line_of(position):
        low, high = 0, len(breaks)
        while low < high:
            middle = (low + high) // 2
            if breaks[middle] < position:
                low = middle + 1
            else:
                high = middle
        return low + 1

    return line_of


def matching_brace(code, position):
    depth = 0
    for i in range(position, len(code)):
        if code[i] == "{":
            depth += 1
        elif code[i] == "}":
            depth -= 1
            if depth == 0:
                return i
    return len(code) - 1


def kind_of_brace(declaration):
    """Returns what the brace after `declaration` opens.

    function: a body; member: a member initializer in a constructor's list;
    scope: a namespace, class or table, whose contents are scanned.
    """
    text = re.sub(r"\b(alignas|__attribute__|decltype)\s*\([^()]*\)", " ",
                  declaration)
    text = re.sub(r"\b(public|private|protected)\s*:", " ", text).strip()
    if "(" not in text and re.search(
            r"\b(namespace|class|struct|union|enum|extern)\b", text):
        return "scope"
    # `Foo() : a_{1}`: a body would have a space before the brace.
    if re.search(r"[\w>\]]$", declaration) and re.search(r"\)\s*:\s", text):
        return "member"
    if ")" not in text or re.search(r"[=,({]$|\breturn$", text):
        return "scope"
    return "function"


def _name(declaration):
    """Returns the declared function's name, for messages and exceptions."""
    test = re.search(r"\bTEST(?:_[FP])?\s*\(\s*(\w+)\s*,\s*(\w+)",
                     declaration)
    if test:
        return f"{test[1]}.{test[2]}"
    match = re.search(r"([\w:~]+|operator\s*\S+)\s*\(", declaration)
    return match[1] if match else "function"
