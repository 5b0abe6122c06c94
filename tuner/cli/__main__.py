"""`python -m tunewright.tuner.cli`: the program without the commands of the service."""

from . import main

main()
