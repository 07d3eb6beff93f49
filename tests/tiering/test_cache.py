"""What all caches share: the type of ids."""

from __future__ import annotations

import numpy as np
import pytest

from sagann.tiering.cache import id_type


@pytest.mark.parametrize(("num_rows", "dtype"), [(0, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)])
def test_ids_have_the_narrowest_type(num_rows: int, dtype: type) -> None:
    assert id_type(num_rows) == dtype
