"""A worker of the job: the example's script, whose way to the servers is given by the environment.

Between it and the servers are the wires of this benchmark, so it reads another servers file than
the one that the supervisor names.
"""

import os
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "ctr" / "train.py"

if __name__ == "__main__":
    if "--servers" in sys.argv:
        sys.argv[sys.argv.index("--servers") + 1] = "@" + os.environ["CHAOS_SERVERS"]
    sys.argv[0] = str(SCRIPT)
    sys.path.insert(0, str(SCRIPT.parent))
    runpy.run_path(str(SCRIPT), run_name="__main__")
