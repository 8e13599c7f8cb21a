"""What can go wrong while talking to the server."""

from lmc_grouped.tools.errors import ToolError


class ServerGone(ToolError):
    """No connection, or it broke: nothing more can be checked."""


class RequestRefused(ToolError):
    """The server answered, with an error. `status` is the HTTP status; an error
    inside a stream that had begun with 200 counts as 500."""

    def __init__(self, what: str, status: int, answer: str) -> None:
        super().__init__(f"{what} answered {status}: {answer.strip()[:300]}")
        self.status = status
