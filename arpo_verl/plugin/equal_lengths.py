"""The one patch of the workers: rows of a vision-language model that are all equally long are read as written.

TransferQueue puts a field's rows together with `torch.nested.as_nested_tensor`, which takes the first dimension that
differs for the ragged one. Position ids are (4, T): where every row that a worker reads has the same T, or it reads one
row alone, none differs, and torch takes the 4. veRL then declares the last one ragged without another look (0.9.1,
`utils/tensordict_utils.py: maybe_fix_3d_position_ids`), and the worker ends: "split_with_sizes expects split_sizes to
sum exactly to T". There is no plugin point between the queue and the engine.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

_FUNCTION = "maybe_fix_3d_position_ids"
_FIELD = "position_ids"


def read_equal_lengths(tensordict_utils: ModuleType) -> None:
    """Patch the function before the engines import it by name; safe to call more than once."""
    from verl.utils.tensordict_utils import nested_tensor_from_tensor_list

    fix = getattr(tensordict_utils, _FUNCTION)
    if hasattr(fix, "__wrapped__"):
        return

    @functools.wraps(fix)
    def fix_all(data: Any) -> None:
        ids = data.get(_FIELD, None)
        if ids is not None and ids.is_nested and ids.dim() == 3:
            values, rows = ids.values(), len(ids.offsets()) - 1
            if len(values) == ids.offsets()[-1]:  # one below the other, (4 rows, T); else side by side
                data[_FIELD] = nested_tensor_from_tensor_list(list(values.chunk(rows)))
        fix(data)

    setattr(tensordict_utils, _FUNCTION, fix_all)
