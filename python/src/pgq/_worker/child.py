"""The program of a process that `Processes` starts: it calls one handler after the other."""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import runpy
import signal
import socket
import struct
import sys
import threading
import traceback
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import ModuleType
from typing import Any, BinaryIO, Final, NamedTuple, TypeGuard

from pgq._log import traced

# Terminals and service managers send them to all processes, but handlers are to finish.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LENGTH: Final = struct.Struct("!Q")  # in bytes, before each request and answer
LOADED: Final = threading.Event()  # the main module, which must not run as a program

_MAIN: Final = "__mp_main__"  # as multiprocessing calls the parent's __main__
_PR_SET_PDEATHSIG: Final = 1


class Main(NamedTuple):
    """What the parent's __main__ was loaded from: a module's name, else the path of a file."""

    name: str | None
    path: str | None


@dataclass(frozen=True, slots=True)
class Request:
    """Which function is to be called with which job, pickled: it may need the main module."""

    module: str
    name: str
    main: Main
    job: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer to a request that has failed: the error, and its traceback, of which it is rid."""

    error: Exception
    text: str


def main(file: int) -> None:
    """Answer requests until the parent has no more, or is gone.

    Args:
        file: the descriptor of a socket. Until here SIGNALS are blocked.
    """
    for number in SIGNALS:
        # What is ignored would be ignored by programs, too, that a handler starts.
        signal.signal(number, _do_nothing)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.platform == "linux":  # the thread below needs the GIL, which a handler may keep
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_inheritable(file, False)
    connection = socket.socket(fileno=file)
    # A process that a handler forks would keep it open, and the end of this one hidden.
    os.register_at_fork(after_in_child=partial(_let_go, connection))
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(connection.makefile("rb"), requests), daemon=True).start()
    while True:
        answer = _answer(requests.get())
        connection.sendall(LENGTH.pack(len(answer)) + answer)


def _do_nothing(*_: object) -> None: ...


def _let_go(connection: socket.socket) -> None:
    file = connection.detach()
    if file >= 0:  # unless this process was forked by one that has done it
        os.close(file)


def _read(stream: BinaryIO, requests: SimpleQueue[bytes]) -> None:
    """Read requests, and end the process with them, whatever it does."""
    try:
        while header := stream.read(LENGTH.size):
            requests.put(stream.read(*LENGTH.unpack(header)))
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def _answer(request: bytes) -> bytes:
    try:
        return pickle.dumps(_call(pickle.loads(request)))
    except BaseException as exc:  # noqa: BLE001 it is raised in the parent
        text = "\n" + "".join(traceback.format_exception(*traced(exc)))
        return pickle.dumps(Failure(exc if _can_be_pickled(exc) else RuntimeError(repr(exc)), text))


def _call(request: Request) -> Any:
    """Call the function, or that of the task, that the request names."""
    if request.module == "__main__" and _MAIN not in sys.modules:
        sys.modules["__main__"] = sys.modules[_MAIN] = _load(request.main)
    found: Any = importlib.import_module(request.module)
    for part in request.name.split("."):
        found = getattr(found, part)
    return getattr(found, "function", found)(pickle.loads(request.job))


def _load(main: Main) -> ModuleType:
    module = ModuleType(_MAIN)
    LOADED.set()
    if main.name is not None:
        vars(module).update(runpy.run_module(main.name, run_name=_MAIN, alter_sys=True))
    elif main.path is not None:
        vars(module).update(runpy.run_path(main.path, run_name=_MAIN))
    return module


def _can_be_pickled(error: BaseException) -> TypeGuard[Exception]:
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), Exception)
    except Exception:  # noqa: BLE001 that is what is asked
        return False
