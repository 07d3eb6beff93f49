from tests.plain import no_kernels_are_generated as no_kernels_are_generated
from tests.storage.conftest import without_sync as without_sync
