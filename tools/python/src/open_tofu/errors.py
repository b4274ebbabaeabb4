"""Errors of this package."""


class TofuError(Exception):
    """An error of a machine, or of the command `tofu`."""


class NoMachine(TofuError):
    """There is no machine of that name, or it does not answer."""


class Refused(TofuError):
    """The machine has answered a request with `error`; the text is its reason."""


class ProtocolError(TofuError):
    """What came from the socket is not the protocol that this package knows."""


class TimedOut(TofuError):
    """A time limit of the caller has expired."""
