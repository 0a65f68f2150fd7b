"""Reads C++ just well enough to find code and function bodies in it.

No parser: comments and literals are blanked out, then braces are matched.
Written for the formatting that clang-format leaves.
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
        self._raw_lines = set()  # lines that lie inside raw strings
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
        # Quotes side by side, so that patterns can ask for a literal as "".
        return '""' + blank[2:]

    def _line(self, position):
        return self._text.count("\n", 0, position) + 1

    def functions(self):
        """(name, first line, lines) of every function body.

        Functions of namespaces and classes and lambdas in tables are found;
        what is inside a function (lambdas, local classes) belongs to it.
        Lines inside raw strings are data and not counted.
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
                kind = _kind(code[start:position])
                if kind == "function":
                    end = _matching_brace(code, position)
                    found.append(
                        self._measure(code, start, position, end, line_of))
                    start = end + 1
                    position = end
                elif kind == "member":
                    position = _matching_brace(code, position)
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
    """Preprocessor lines, with their continuations, made blank."""
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


def _matching_brace(code, position):
    depth = 0
    for i in range(position, len(code)):
        if code[i] == "{":
            depth += 1
        elif code[i] == "}":
            depth -= 1
            if depth == 0:
                return i
    return len(code) - 1


def _kind(declaration):
    """What the brace after `declaration` opens.

    function; member: the initializer of a member in a constructor's list;
    scope: a namespace, a class or a table, which is entered.
    """
    text = re.sub(r"\b(alignas|__attribute__|decltype)\s*\([^()]*\)", " ",
                  declaration)
    text = re.sub(r"\b(public|private|protected)\s*:", " ", text).strip()
    if "(" not in text and re.search(
            r"\b(namespace|class|struct|union|enum|extern)\b", text):
        return "scope"
    # `Foo() : a_{1}`, with no space before the brace as a body would have.
    if re.search(r"[\w>\]]$", declaration) and re.search(r"\)\s*:\s", text):
        return "member"
    if ")" not in text or re.search(r"[=,({]$|\breturn$", text):
        return "scope"
    return "function"


def _name(declaration):
    """The declared function's name, for messages and exceptions."""
    test = re.search(r"\bTEST(?:_[FP])?\s*\(\s*(\w+)\s*,\s*(\w+)",
                     declaration)
    if test:
        return f"{test[1]}.{test[2]}"
    match = re.search(r"([\w:~]+|operator\s*\S+)\s*\(", declaration)
    return match[1] if match else "function"
