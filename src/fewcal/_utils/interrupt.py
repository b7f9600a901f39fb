"""Ctrl-C, wherever it falls: also where an import turns it into another error on its way."""

from __future__ import annotations

import signal
import threading
from types import FrameType

_seen = threading.Event()
# Seconds until a Ctrl-C that fell into an import is looked at again, where the system has timers.
_LATER = 0.02
_CAN_WAIT = hasattr(signal, "setitimer")


def listen() -> None:
    """Remember Ctrl-C from here on, and raise `KeyboardInterrupt` as ever."""
    if _ours():
        _seen.clear()
        signal.signal(signal.SIGINT, _remember)
        if _CAN_WAIT:
            signal.signal(signal.SIGALRM, _remember)


def interrupted() -> bool:
    """Whether Ctrl-C was pressed since `listen`."""
    return _seen.is_set()


def raise_pending() -> None:
    """Raise `KeyboardInterrupt` now where Ctrl-C fell into an import, before somebody else handles signals."""
    if interrupted():
        forget_pending()
        raise KeyboardInterrupt


def forget_pending() -> None:
    """Ctrl-C is being told: what still waits for the end of an import would be told once more."""
    if _CAN_WAIT:
        signal.setitimer(signal.ITIMER_REAL, 0)


def leave_to_system() -> None:
    """When all is done: Ctrl-C ends the process at once, without a traceback of what Python still clears up."""
    if _ours():
        forget_pending()
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ours() -> bool:
    """Whether nobody else handles Ctrl-C; handlers can be set by the main thread alone."""
    here = threading.current_thread() is threading.main_thread()
    return here and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _remember)


def _remember(number: int, frame: FrameType | None) -> None:
    _seen.set()
    if not (_CAN_WAIT and _importing(frame)):
        raise KeyboardInterrupt
    # Modules in C++, torch's among them, end the process where Python that they call raises: wait until all is loaded.
    signal.setitimer(signal.ITIMER_REAL, _LATER)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
