"""Lists the libraries that the loader finds for a packed program or library."""

import pathlib
import re
import subprocess

LOADER = "/lib64/ld-linux-x86-64.so.2"
GLIBC = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt)\.so")


def assert_links_within(test, files, folder):
    """Checks that every library that FILES link to, except glibc, is in
    FOLDER."""
    test.assertGreater(len(files), 10)
    for file in files:
        result = subprocess.run([LOADER, "--list", file], env={},
                                capture_output=True, text=True, check=False)
        test.assertEqual(result.returncode, 0, f"{file}: {result.stderr}")
        for line in result.stdout.splitlines():
            name, _, path = line.strip().partition(" => ")
            if not path or GLIBC.match(name):
                continue
            found = pathlib.Path(path.split(" (")[0]).resolve()
            test.assertTrue(found.is_relative_to(folder.resolve()),
                            f"{file.name}: {line}")
