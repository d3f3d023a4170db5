"""The convention of the drop-in names: they never raise into a user's script, they log one sentence and return
False."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from taskd.errors import TaskdError

Function = TypeVar("Function", bound=Callable[..., Any])


def never_raises(logger: logging.Logger) -> Callable[[Function], Function]:
    """Turn every exception of the function into a log line and False. KeyboardInterrupt and the like pass through."""

    def wrap(function: Function) -> Function:
        @functools.wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except TaskdError as error:
                logger.error("%s: %s", function.__name__, error)
            except TypeError as error:
                if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                    logger.exception(
                        "%s failed by a mistake of taskd's own; training is not touched", function.__name__
                    )
                else:  # the call itself did not fit the signature
                    logger.error("%s", error)
            except Exception:
                logger.exception("%s failed by a mistake of taskd's own; training is not touched", function.__name__)
            return False

        return guarded  # type: ignore[return-value]

    return wrap
