"""The folder of compiled kernels that the tests of one build share."""

import re


def kernel_cache(build):
    """After a change to fusor, tests compile their kernels again, whatever the
    kernel cache's own keys say."""
    header = build / "generated/runtime/backend/build_id.h"
    build_id = re.search(r'kBuildId\[\] = "(\w+)"', header.read_text())[1]
    return build / "test_kernels" / build_id
