"""Logs: JSON lines on stderr that carry metadata only, never prompts, completions or keys.

A traceback's message can quote what a caller sent, so an exception is logged as its type and the places it passed.
"""
from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog


def configure(level: str) -> None:
    """Send structlog's events and the standard library's records to stderr as JSON lines. Call once per process."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_message,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _Stderr()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
    ))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Where a line can't be written, logging would print the exception that it was about, message and all.
    logging.raiseExceptions = False


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is now, not to what it was when logging was set up."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line at once, so that lines of several threads do not mix."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def places(error: BaseException) -> list[str]:
    """Where an exception passed, innermost last: `file:line function`."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]


def _without_message(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    raised = event.pop("exc_info", None)
    if raised:
        error = raised if isinstance(raised, BaseException) else (
            raised[1] if isinstance(raised, tuple) else sys.exc_info()[1]
        )
        if error is not None:
            event["error"] = type(error).__name__
            event["places"] = places(error)
            if error.__cause__ is not None:
                event["cause"] = type(error.__cause__).__name__
    return event


def _json(event: MutableMapping[str, Any], **_: Any) -> str:
    return orjson.dumps(event, default=repr).decode()
