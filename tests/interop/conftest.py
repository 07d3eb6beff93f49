from tests.storage.conftest import without_sync as without_sync
