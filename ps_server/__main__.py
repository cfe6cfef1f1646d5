"""`python -m ps_server` is `ps-server`."""

import sys

from ps_server.cli import main

sys.exit(main())
