"""`python -m sglang.launch_server` that starts the scripted server: for tests of starting, watching and ending a server.

SCRIPTED holds its switches as JSON; {"fails": "text"} makes it say that and end."""

import json
import os
import sys

switches = json.loads(os.environ.get("SCRIPTED", "{}"))
if "fails" in switches:
    sys.exit(switches["fails"])

from sglang_server import main

main(sys.argv[1:], switches)
