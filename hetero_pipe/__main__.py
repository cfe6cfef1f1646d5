"""`python -m hetero_pipe` is `hetero-pipe`."""

import sys

from hetero_pipe.cli import main

sys.exit(main())
