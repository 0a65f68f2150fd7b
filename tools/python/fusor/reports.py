"""Reports for terminals and notebooks."""

import html
import os
import typing


class Report:
    """What a compiled step costs, or how variants compare.

    print(report) shows the text; a notebook shows the HTML page.

    text: tables, at most 100 columns wide.
    html: one self-contained page.
    data: the numbers. Keys are those of the command line's --json; times are in
        the units that their names state.
    """

    def __init__(self, text: str, page: str,
                 data: dict[str, typing.Any]) -> None:
        self.text = text
        self.html = page
        self.data = data

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        # The page has its own style and scripts, so it gets its own frame.
        return ('<iframe style="width:100%;height:640px;border:0" srcdoc="'
                f'{html.escape(self.html)}"></iframe>')

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the HTML page to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)
