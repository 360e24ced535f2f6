"""`python -m steersman_controller` is the `steersman` command."""

from steersman_controller.cli import main

main()
