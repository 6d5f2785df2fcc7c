"""A table has typed values of a run, in order, and makes a pandas data frame on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from arpo_verl.errors import MissingDependencyError
from arpo_verl.versions import pip_install

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


class Table(tuple[T, ...]):
    """A tuple of dataclass values."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row for each value (several, if it has `records()`) and a column for each field.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        records = [record for value in self for record in _records(value)]
        return data_frame({name: [record[name] for record in records] for name in (records[0] if records else ())})


def data_frame(columns: Mapping[str, Sequence[Any]], index: Sequence[int] | None = None) -> pandas.DataFrame:
    """Return the columns as a data frame.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError(f"to_pandas() needs pandas; {pip_install('pandas')}") from error
    tellable = {name: [_tellable(value) for value in values] for name, values in columns.items()}
    return pandas.DataFrame(tellable, index=None if index is None else list(index))


def _tellable(value: Any) -> Any:
    """Escape lone surrogates in a text, which JSON can contain but a column cannot; return other values unchanged."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _records(value: Any) -> list[dict[str, Any]]:
    if hasattr(value, "records"):
        records: list[dict[str, Any]] = value.records()
        return records
    return [{field.name: getattr(value, field.name) for field in dataclasses.fields(value)}]
