"""Starts the `flatout` program that lies in this package, in place of this interpreter."""

import os
import sys


def main() -> int:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", "flatout")
    try:
        os.execv(program, [program] + sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"flatout: error: cannot start {program}: {error.strerror}\n"
                         "flatout: hint: this package was installed without its program; run `pip install .` again\n")
        return 125


if __name__ == "__main__":
    sys.exit(main())
