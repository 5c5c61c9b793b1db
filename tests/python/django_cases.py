"""Runs Django's own tests of task backends, with backends of pgq in place of Django's two.

    python -m tests.python.django_cases DIRECTORY DATABASE

`DIRECTORY` has Django's package `tasks` of tests. `DATABASE` is the value of DATABASES["default"],
as JSON. The last line printed is JSON: what is wrong with each case, nothing if it has passed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import unittest
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from traceback import format_exception
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import SimpleTestCase

# The other module is about classes of its own.
MODULES = ("test_dummy_backend", "test_immediate_backend", "test_tasks")


class Outcomes(unittest.TestResult):
    """Notes what became of each case."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 unittest calls it so
        self.wrong[test.id()] = ""

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        # The case of a failed set-up of a class has not been started.
        self.wrong[test.id()] = self.wrong.get(test.id(), "") + "".join(format_exception(err[1]))

    addFailure = addError  # noqa: N815

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.wrong[test.id()] = f"skipped: {reason}"

    def addSubTest(  # noqa: N802
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any
    ) -> None:
        if err is not None:
            self.addError(test, err)


def main() -> None:
    """Run the cases."""
    directory, database = sys.argv[1:]
    # Some look for results in an event loop: Django's backends have those in memory.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    settings.configure(
        INSTALLED_APPS=["pgq.django"],
        DATABASES={"default": json.loads(database)},
        TASKS={"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}},
    )
    django.setup()
    substitute()
    sys.path.insert(0, directory)
    names = [f"tasks.{name}" for name in MODULES]
    cases = unittest.defaultTestLoader.loadTestsFromNames(names)
    outcomes = Outcomes()
    cases.run(outcomes)
    print(json.dumps(outcomes.wrong))


def substitute() -> None:
    """Let the names of Django's backends mean backends of pgq, with the helpers of those."""
    from pgq.django.management.commands.pgq_worker import Command  # noqa: PLC0415 needs settings
    from pgq.django.models import Job  # noqa: PLC0415
    from pgq.django.tasks import PgqBackend  # noqa: PLC0415

    class Stored(PgqBackend):
        """Leaves tasks alone, as DummyBackend does."""

        @property
        def results(self) -> list[Any]:
            return [self.get_result(str(job.id)) for job in Job.objects.order_by("id")]

        def clear(self) -> None:
            with connection.cursor() as cursor:
                cursor.execute("select pgq_purge('default', '{ready, completed, dead}')")

    class Worked(PgqBackend):
        """Has a worker try each task once before `enqueue` returns, as ImmediateBackend does."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params)
            self.max_attempts = 1

        def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            result = super().enqueue(task, args, kwargs)
            work = partial(call_command, Command(), "--until-idle", verbosity=0)
            worker = threading.Thread(
                target=work, kwargs={"backend": self.alias, "queues": ["default"]}
            )
            worker.start()
            worker.join()
            result.refresh()
            return result

    home = "django.tasks.backends"
    setattr(import_module(f"{home}.dummy"), "DummyBackend", Stored)  # noqa: B010
    setattr(import_module(f"{home}.immediate"), "ImmediateBackend", Worked)  # noqa: B010
    SimpleTestCase.databases = {"default"}


if __name__ == "__main__":
    main()
