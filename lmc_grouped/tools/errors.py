"""The error that ends a command with a message instead of a traceback."""


class ToolError(ValueError):
    """Bad input, or a server that cannot be used: exit status 2.

    The message names what was observed, what is allowed and what to do.
    """
