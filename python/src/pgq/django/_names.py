"""The names of Django's tasks: of Django itself from 6.0 on, before of the package django-tasks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import django

_HOME: Final = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
_NORMALIZE: Final = "django.utils.json" if django.VERSION >= (6, 0) else "django_tasks.utils"

# The stubs of Django have no tasks yet.
Task: TypeAlias = Any
TaskResult: TypeAlias = Any
base: Final[Any] = import_module(f"{_HOME}.base")
exceptions: Final[Any] = import_module(f"{_HOME}.exceptions")
check_tasks: Final[Any] = import_module(f"{_HOME}.checks").check_tasks
signals: Final[Any] = import_module(f"{_HOME}.signals")
task_backends: Final[Any] = import_module(_HOME).task_backends
normalize_json: Final[Any] = import_module(_NORMALIZE).normalize_json

if TYPE_CHECKING:

    class BaseTaskBackend:
        """The base of all backends."""

        alias: str
        queues: set[str]
        options: dict[str, Any]

        def __init__(self, alias: str, params: dict[str, Any]) -> None: ...
        def validate_task(self, task: Task) -> None: ...

else:
    BaseTaskBackend = import_module(f"{_HOME}.backends.base").BaseTaskBackend
