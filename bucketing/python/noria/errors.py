"""What a failed call raises: one class a status, the text is the library's own."""

from __future__ import annotations


class NoriaError(RuntimeError):
    """A call that failed. ``status`` is noria.h's number; the text names object, peer and cause."""

    status = 0


class LibraryError(NoriaError, ImportError):
    """libnoria.so was not found, could not be loaded, or is of another version."""


class ArgumentError(NoriaError, ValueError):
    """An argument, a configuration or a NORIA_ variable is not acceptable."""

    status = -1


class StateError(NoriaError):
    """Not now: the object is in another phase."""

    status = -2


class OrderError(NoriaError):
    """Ranks called collectives in different order."""

    status = -3


class MismatchError(NoriaError):
    """Ranks disagree on what must agree."""

    status = -4


class DuplicateReadyError(NoriaError):
    """A tensor was ready twice in a step."""

    status = -5


class MissingError(NoriaError):
    """A tensor, or a rank, did not come."""

    status = -6


class TimedOutError(NoriaError, TimeoutError):
    """No progress within the bound."""

    status = -7


class PeerError(NoriaError, ConnectionError):
    """Another rank died or failed."""

    status = -8


class NetworkError(NoriaError, ConnectionError):
    """The network failed."""

    status = -9


class DeviceError(NoriaError):
    """The device failed, or there is none."""

    status = -10


class OutOfMemoryError(NoriaError, MemoryError):
    """There is not enough memory."""

    status = -11


class AbortedError(NoriaError):
    """The communicator was aborted, here or elsewhere."""

    status = -12


class UnsupportedError(NoriaError, NotImplementedError):
    """Not built, or not for this dtype or device."""

    status = -13


class NonFiniteError(NoriaError, ArithmeticError):
    """A gradient holds an infinity or no number."""

    status = -14


class InternalError(NoriaError):
    """noria contradicts itself: a bug."""

    status = -15


class HookError(NoriaError):
    """A hook of this rank's, or of another's, failed."""

    status = -16


_by_status = {kind.status: kind for kind in NoriaError.__subclasses__() if kind.status != 0}


def error_of(status: int, text: str) -> NoriaError:
    """The exception for a status; a status that is none is a NoriaError that says its number."""
    kind = _by_status.get(status)
    if kind is not None:
        return kind(text)
    error = NoriaError(f"status {status}: {text}")
    error.status = status
    return error
