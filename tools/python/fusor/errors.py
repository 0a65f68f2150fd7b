"""The exception of the package."""


class Error(RuntimeError):
    """What fusor reports, in one line: what failed, what was expected, what was
    found.

    code: the exit code of the command line for such an error, for example 2 for
        a wrong argument, 3 for a malformed graph or model, 7 for a plan that
        does not fit into memory.
    """

    code: int = 2


Error.__module__ = "fusor"
