"""How fast and how small it is, measured from outside; `make bench` runs it all."""
