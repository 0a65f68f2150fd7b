"""The folder of compiled kernels that the tests of one build share."""

import re
import shutil


def kernel_cache(build):
    """After a change to fusor, tests compile their kernels again, whatever the
    kernel cache's own keys say. Removes the kernels of earlier builds."""
    header = build / "generated/runtime/backend/build_id.h"
    build_id = re.search(r'kBuildId\[\] = "(\w+)"', header.read_text())[1]
    folder = build / "test_kernels"
    for earlier in folder.glob("*"):
        if earlier.name != build_id:
            shutil.rmtree(earlier, ignore_errors=True)
    return folder / build_id
