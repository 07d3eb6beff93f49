from tests.plain import kernels as kernels, no_kernels_are_generated as no_kernels_are_generated
