"""Typed values of a run, in order, which become a pandas data frame on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from arpo_verl.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


class Table(tuple[T, ...]):
    """Dataclass values; a tuple of them."""

    def to_pandas(self) -> pandas.DataFrame:
        """A row a value, a column a field; a value that has `records()` gives several rows.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return data_frame(record for value in self for record in _records(value))


def data_frame(records: Iterable[dict[str, Any]], index: str | None = None) -> pandas.DataFrame:
    """The records as a data frame.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError("to_pandas() needs pandas; pip install pandas") from error
    frame = pandas.DataFrame.from_records(list(records))
    return frame if index is None or frame.empty else frame.set_index(index)


def _records(value: Any) -> list[dict[str, Any]]:
    if hasattr(value, "records"):
        return value.records()
    return [{field.name: getattr(value, field.name) for field in dataclasses.fields(value)}]
