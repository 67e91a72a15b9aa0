"""`python -m phalanx`."""

from phalanx.cli.main import main

main(prog_name="phalanx")
