"""The queues in a browser: an ASGI application, and what `pgq dashboard` serves.

It needs the extra "dashboard".
"""

from pgq.dashboard._access import Authenticate, User, anybody, by_header
from pgq.dashboard._app import app

__all__ = ["Authenticate", "User", "anybody", "app", "by_header"]
