"""The program fusor of the command line, which the wheel contains."""

import os
import pathlib
import sys


def main() -> None:
    """Replace this process by the program, with the same arguments."""
    program = pathlib.Path(__file__).parent / "bin/fusor"
    os.execv(program, ["fusor", *sys.argv[1:]])
